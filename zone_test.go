package lemma_test

import (
	"archive/zip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lemma"
)

func TestZone(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"Europe/Berlin": true, "UTC": true, "Etc/GMT+5": true, "America/Argentina/Buenos_Aires": true,
		"": false, "Local": false, "local": false, "LOCAL": false, "localtime": false, "posixrules": false, "Factory": false,
		"posix/Europe/Berlin": false, "right/Europe/Berlin": false, "Europe/Nowhere": false,
		"../etc/localtime": false, "/etc/localtime": false, "./localtime": false, "+02:00": false,
		"Europe/./Berlin": false, "Europe//Berlin": false, "./UTC": false, "./Factory": false, "europe/berlin": false, "utc": false,
	} {
		zone, err := lemma.Zone(name)
		if (err == nil) != want || want && zone.String() != name {
			t.Errorf("%q: %v, %v", name, zone, err)
		}
	}
}

// Every zone that Go has is on the list, so that a new version of Go does not leave one out.
func TestZonesOfGo(t *testing.T) {
	t.Parallel()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	all, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = all.Close() }()
	for _, f := range all.File {
		if strings.HasSuffix(f.Name, "/") || f.Name == "Factory" {
			continue
		}
		if _, err := lemma.Zone(f.Name); err != nil {
			t.Errorf("%s: %v; add it to zones.txt", f.Name, err)
		}
	}
}
