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

func TestInstant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, zone, wall, want string }{
		{"a plain day", "Europe/Berlin", "2026-11-21 09:00:00", "2026-11-21T09:00:00+01:00"},
		{"Berlin, in the gap of spring", "Europe/Berlin", "2026-03-29 02:30:00", "2026-03-29T03:00:00+02:00"},
		{"Berlin, the gap's first instant", "Europe/Berlin", "2026-03-29 02:00:00", "2026-03-29T03:00:00+02:00"},
		{"Berlin, before the gap", "Europe/Berlin", "2026-03-29 01:59:59", "2026-03-29T01:59:59+01:00"},
		{"Berlin, after the gap", "Europe/Berlin", "2026-03-29 03:00:00", "2026-03-29T03:00:00+02:00"},
		{"Berlin, the hour that is there twice", "Europe/Berlin", "2026-10-25 02:30:00", "2026-10-25T02:30:00+02:00"},
		{"Berlin, after it", "Europe/Berlin", "2026-10-25 03:00:00", "2026-10-25T03:00:00+01:00"},
		{"New York, gap", "America/New_York", "2026-03-08 02:30:00", "2026-03-08T03:00:00-04:00"},
		{"New York, twice", "America/New_York", "2026-11-01 01:30:00", "2026-11-01T01:30:00-04:00"},
		{"Lord Howe, a gap of half an hour", "Australia/Lord_Howe", "2026-10-04 02:15:00", "2026-10-04T02:30:00+11:00"},
		{"Lord Howe, half an hour twice", "Australia/Lord_Howe", "2026-04-05 01:45:00", "2026-04-05T01:45:00+11:00"},
		{"Lord Howe, after it", "Australia/Lord_Howe", "2026-04-05 02:00:00", "2026-04-05T02:00:00+10:30"},
		{"Sao Paulo, a day without midnight", "America/Sao_Paulo", "2018-11-04 00:00:00", "2018-11-04T01:00:00-02:00"},
		{"Sao Paulo, midnight twice", "America/Sao_Paulo", "2018-02-17 23:30:00", "2018-02-17T23:30:00-02:00"},
		{"Kathmandu", "Asia/Kathmandu", "2026-06-01 09:00:00", "2026-06-01T09:00:00+05:45"},
		{"Apia, a day that was left out", "Pacific/Apia", "2011-12-30 09:00:00", "2011-12-31T00:00:00+14:00"},
		{"far ahead", "Europe/Berlin", "2199-07-01 09:00:00", "2199-07-01T09:00:00+02:00"},
		{"the last day of a leap year", "Europe/Berlin", "2028-12-31 09:00:00", "2028-12-31T09:00:00+01:00"},
		{"the day after it", "America/New_York", "2029-01-01 12:00:00", "2029-01-01T12:00:00-05:00"},
		{"the first hour after it", "Australia/Sydney", "2029-01-01 00:30:00", "2029-01-01T00:30:00+11:00"},
		{"UTC", "UTC", "2026-03-29 02:30:00", "2026-03-29T02:30:00Z"},
	} {
		wall, err := time.Parse(time.DateTime, c.wall)
		if err != nil {
			t.Fatal(err)
		}
		if got := lemma.Instant(wall, zoneNamed(t, c.zone)).Format(time.RFC3339); got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

// Where a zone's clocks show a time once, Lemma agrees with Go: in all zones at the end of a leap
// year, and in some over 20 years.
func TestInstantAgreesWithGo(t *testing.T) {
	t.Parallel()
	leap := time.Date(2028, 12, 29, 0, 0, 0, 0, time.UTC)
	for _, name := range zoneNames(t) {
		agreesWithGo(t, name, leap, leap.AddDate(0, 0, 5))
	}
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo",
		"Pacific/Apia"} {
		agreesWithGo(t, name, time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	}
}

func agreesWithGo(t *testing.T, name string, from, to time.Time) {
	t.Helper()
	zone := zoneNamed(t, name)
	for at := from; at.Before(to); at = at.Add(37 * time.Minute * 11) {
		local := at.In(zone)
		_, offset := local.Zone()
		got := lemma.Instant(at.Add(time.Duration(offset)*time.Second), zone)
		// The hour that exists twice: the first of both shows the same.
		if !got.Equal(at) && (got.Format(time.DateTime) != local.Format(time.DateTime) || !got.Before(at)) {
			t.Fatalf("%s: %s became %s", name, local, got)
		}
	}
}

func zoneNamed(t *testing.T, name string) *time.Location {
	t.Helper()
	zone, err := lemma.Zone(name)
	if err != nil {
		t.Fatal(name)
	}
	return zone
}

// zoneNames are the names of the file.
func zoneNames(t *testing.T) (names []string) {
	t.Helper()
	all, err := zip.OpenReader("zoneinfo.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = all.Close() }()
	for _, f := range all.File {
		if _, err := lemma.Zone(f.Name); err == nil {
			names = append(names, f.Name)
		}
	}
	if len(names) < 400 {
		t.Fatalf("%d zones", len(names))
	}
	return names
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
