package graph

import (
	"archive/zip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The functions of time accept IANA zones and offsets. Names of the machine's own zone are
// rejected: when the condition is saved if it spells them out, and when it is evaluated if
// they come from data.
func TestZonesInConditions(t *testing.T) {
	t.Parallel()
	vars := func(zone string) Vars {
		return Vars{Now: time.Date(2026, 7, 1, 22, 30, 15, 7e6, time.UTC),
			Trigger: map[string]any{"name": "x", "source_id": "1", "at": "2026-07-01T22:30:15.007Z",
				"properties": map[string]any{"zone": zone}}}
	}
	for function, want := range map[string]string{
		"getFullYear": "2026", "getMonth": "6", "getDate": "2", "getDayOfMonth": "1", "getDayOfYear": "182", "getDayOfWeek": "4",
		"getHours": "0", "getMinutes": "30", "getSeconds": "15", "getMilliseconds": "7",
	} {
		for _, zone := range []string{"Europe/Berlin", "+02:00"} {
			for _, expression := range []string{`now.` + function + `("` + zone + `") == ` + want,
				`now.` + function + `(trigger.properties.zone) == ` + want,
				`trigger.at.` + function + `(trigger.properties.zone) == ` + want} {
				got, err := mustCompile(t, shopColumns, expression).Eval(vars(zone))
				if err != nil || !got {
					t.Errorf("%s: %v, %v", expression, got, err)
				}
			}
		}
		for _, zone := range []string{"Local", "", "localtime", "local", "right/Europe/Berlin", "Nowhere", "./localtime", "Europe/./Berlin"} {
			_, _, faults := newCompiler(shopColumns).compile(enrolling, "/if", `now.`+function+`("`+zone+`") == 1`)
			if len(faults) != 1 || !strings.Contains(faults[0].Detail, "IANA time zone") || faults[0].Pointer != "/if" {
				t.Errorf("%s(%q): %v", function, zone, faults)
			}
			_, err := mustCompile(t, shopColumns, `now.`+function+`(trigger.properties.zone) >= 0`).Eval(vars(zone))
			if err == nil || err.Error() != "a value is no time zone" {
				t.Errorf("%s of %q in data: %v", function, zone, err)
			}
		}
	}
}

// Conditions have the zones of the program, not those of the machine, which may be missing or old. The
// test runs itself on a machine whose Berlin has the rules of Tokyo.
func TestZonesInConditionsAreNotThoseOfTheMachine(t *testing.T) {
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
	if is, err := mustCompile(t, shopColumns, `now.getHours("Europe/Berlin") == 14`).Eval(Vars{Now: noon}); err != nil || !is {
		t.Errorf("%v, %v", is, err)
	}
}

// berlinOfTokyo returns a folder of zones.
func berlinOfTokyo(t *testing.T) string {
	t.Helper()
	all, err := zip.OpenReader("../../zoneinfo.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	rules, err := fs.ReadFile(all, "Asia/Tokyo")
	folder := t.TempDir()
	if err == nil {
		err = os.Mkdir(filepath.Join(folder, "Europe"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "Europe", "Berlin"), rules, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}
