package lemma_test

import (
	"testing"

	"lemma"
)

func TestZone(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"Europe/Berlin": true, "UTC": true, "Etc/GMT+5": true, "America/Argentina/Buenos_Aires": true,
		"": false, "Local": false, "local": false, "LOCAL": false, "localtime": false, "posixrules": false, "Factory": false,
		"posix/Europe/Berlin": false, "right/Europe/Berlin": false, "Europe/Nowhere": false,
		"../etc/localtime": false, "/etc/localtime": false, "+02:00": false,
	} {
		zone, err := lemma.Zone(name)
		if (err == nil) != want || want && zone.String() != name {
			t.Errorf("%q: %v, %v", name, zone, err)
		}
	}
}
