package graph

import (
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
