package lemma_test

import (
	"archive/zip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// Zones have the rules of the program, not those of the machine. The test runs itself on a
// machine whose Berlin has the rules of Tokyo.
func TestZonesAreNotThoseOfTheMachine(t *testing.T) {
	t.Parallel()
	if os.Getenv("LEMMA_TEST_ZONES") == "" {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		again.Env = append(os.Environ(), "LEMMA_TEST_ZONES=1", "ZONEINFO="+berlinOfTokyo(t))
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	if machine, err := time.LoadLocation("Europe/Berlin"); err != nil || noon.In(machine).Hour() != 21 {
		t.Fatalf("the machine has other rules: %v, %v", machine, err)
	}
	if berlin, err := lemma.Zone("Europe/Berlin"); err != nil || noon.In(berlin).Hour() != 14 {
		t.Errorf("noon is %v, %v", noon.In(berlin), err)
	}
}

// berlinOfTokyo returns a folder of zones.
func berlinOfTokyo(t *testing.T) string {
	t.Helper()
	all, err := zip.OpenReader("zoneinfo.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = all.Close() }()
	rules, err := fs.ReadFile(all, "Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "Europe"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "Europe", "Berlin"), rules, 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Every zone that Go has is in the file, so that a new version of Go does not leave one out.
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
			t.Errorf("%s: %v; run make zones", f.Name, err)
		}
	}
}
