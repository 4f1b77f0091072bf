package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/api/strict"
	"lemma/client"
	"lemma/flows/intake"
)

// itemFaults returns the faults of every item as "pointer code"; empty without a fault.
func (a answered) itemFaults() []string {
	a.t.Helper()
	var all []string
	for i, one := range a.json["results"].([]any) {
		r := one.(object)
		if r["index"] != float64(i) {
			a.t.Errorf("%s: item %d has index %v", a.what, i, r["index"])
		}
		var faults []string
		for _, f := range r["errors"].([]any) {
			faults = append(faults, fmt.Sprintf("%s %s", f.(object)["pointer"], f.(object)["code"]))
		}
		all = append(all, strings.Join(faults, ", "))
	}
	return all
}

// brokenItems are invalid items of a bulk with their faults, whose pointers begin at the
// item.
var brokenItems = []struct{ item, faults string }{
	{`null`, ` wrong_type`},
	{`7`, ` wrong_type`},
	{`"c1"`, ` wrong_type`},
	{`[]`, ` wrong_type`},
	{`{}`, `/event required, /profile_key required`},
	{`{"profile_key": 7, "event": "x"}`, `/profile_key wrong_type`},
	{`{"profile_key": "", "event": "x"}`, `/profile_key empty`},
	{`{"profile_key": "c1", "event": "x", "colour": "red"}`, `/colour unknown_field`},
	{`{"profile_key": "c1", "event": "x", "event": "y"}`, `/event repeated`},
	{`{"profile_key": "c\u0000", "event": "x"}`, `/profile_key nul`},
	{`{"profile_key": "c\ud800", "event": "x"}`, `/profile_key bad_text`},
	{`{"profile_key": "c1", "event": "x", "properties": {"a": ["\udc00\ud83d"]}}`, `/properties/a/0 bad_text`},
	{`{"profile_key": "c1", "event": "x", "properties": {"a": ["\u0000"]}}`, `/properties/a/0 nul`},
	{`{"profile_key": "c1", "event": "x", "properties": []}`, `/properties wrong_type`},
	{`{"profile_key": "c1", "event": "x", "properties": {"a": ` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + `}}`, ` too_deep`},
	{`{"profile_key": "c1", "event": "x", "properties": {"a": ` + strings.Repeat("[", 10) + strings.Repeat("]", 10) + `}}`,
		`/properties properties_invalid`},
	{`{"profile_key": "c1", "event": "x", "properties": {"a": "` + strings.Repeat("x", 33<<10) + `"}}`, `/properties properties_invalid`},
	{`{"profile_key": "c1", "event": "x", "occurred_at": "yesterday"}`, `/occurred_at bad_format`},
	{`{"profile_key": "c1", "event": "x", "occurred_at": "1999-12-31T23:59:59Z"}`, `/occurred_at out_of_range`},
	{`{"profile_key": "c1", "event": "x", "source_id": ""}`, `/source_id empty`},
	{`{"profile_key": "` + strings.Repeat("é", 200) + `", "event": "x"}`, `/profile_key invalid_key`},
	{"{\"profile_key\": \"c\xff\", \"event\": \"x\"}", ` bad_json`},
}

// A broken event is answered with its faults, and the others are recorded.
func TestBrokenItemsStayAlone(t *testing.T) {
	b := setup(t)
	const sound = `{"profile_key": "c1", "event": "visited"}`
	var items, want []string
	for i, broken := range brokenItems {
		items = append(items, sound, broken.item)
		at := fmt.Sprintf("/events/%d", 2*i+1)
		want = append(want, "", at+strings.ReplaceAll(broken.faults, ", /", ", "+at+"/"))
	}
	got := b.do("POST", "/v1/events/bulk", `{"events": [`+strings.Join(items, ",\n")+`]}`).is(202)
	if diff := cmp.Diff(want, got.itemFaults()); diff != "" {
		t.Error(diff)
	}
	n := len(brokenItems)
	if diff := cmp.Diff(object{"accepted": float64(n), "duplicate": 0.0, "invalid": float64(n), "overloaded": 0.0},
		got.json["counts"]); diff != "" {
		t.Error(diff)
	}
	b.WantCount(n, `select count(*) from trigger_events`)
}

// The answer to a bulk of many faults is not much larger than the bulk.
func TestFaultsOfABulkAreBounded(t *testing.T) {
	b := setup(t)
	fields := ""
	for i := range 15 {
		fields += fmt.Sprintf(`,"%d":0`, i)
	}
	items := strings.Repeat(`,{"profile_key":"c1","event":"x"`+fields+`}`, 1000)
	got := b.do("POST", "/v1/events/bulk", `{"events":[`+items[1:]+`]}`).is(202)
	listed := 0
	for i, of := range got.itemFaults() {
		n := strings.Count(of, "unknown_field")
		if listed += n; n == 0 || i < 100 && n != maxItemFaults {
			t.Errorf("item %d has %d faults", i, n)
		}
	}
	if listed != maxBulkFaults+900 {
		t.Errorf("%d faults are listed", listed)
	}
}

// An event that was not recorded, since the conditions on others took too long, is
// neither accepted nor invalid.
func TestOverloadedEventsOfABulk(t *testing.T) {
	t.Parallel()
	overloaded := &lemma.Error{Kind: lemma.Unavailable, Code: "overloaded", Message: "send it again"}
	l := items[client.NewEvent]{at: "/events/", items: make([]item[client.NewEvent], 2), sound: []int{0, 1}}
	got, err := recordedItems(l, []intake.Recorded{{Key: lemma.NewID()}, {Key: lemma.NewID(), Err: overloaded}})
	if err != nil {
		t.Fatal(err)
	}
	if want := (client.RecordedCounts{Accepted: 1, Overloaded: 1}); got.Counts != want {
		t.Errorf("%+v", got.Counts)
	}
	want := client.RecordedItem{Index: 1, Status: "overloaded", Results: []client.EnrollResult{},
		Errors: []client.Fault{{Pointer: "/events/1", Code: "overloaded", Detail: "send it again"}}}
	if diff := cmp.Diff(want, got.Results[1]); diff != "" {
		t.Error(diff)
	}
}

// A broken event that is sent alone is refused with the same faults.
func TestBrokenEventsAlone(t *testing.T) {
	b := setup(t)
	for _, broken := range brokenItems {
		got := b.do("POST", "/v1/events", broken.item)
		if got.status != 422 && got.status != 400 {
			t.Errorf("%.60s: %d %s", broken.item, got.status, got.body)
			continue
		}
		var faults []string
		for _, f := range got.problem.Errors {
			faults = append(faults, f.Pointer+" "+f.Code)
		}
		if broken.item == "null" {
			continue // the body null has one more fault
		}
		if diff := cmp.Diff(broken.faults, strings.Join(faults, ", ")); diff != "" {
			t.Errorf("%.60s: %s", broken.item, diff)
		}
	}
	b.WantCount(0, `select count(*) from trigger_events`)
}

// A bulk with a fault outside of its items is refused as a whole.
func TestBrokenBulks(t *testing.T) {
	b := setup(t)
	many := strings.Repeat(`{"profile_key": "c1", "event": "x"},`, 1000)
	for _, c := range []bad{
		{"no list", "POST", "/v1/events/bulk", `{}`, 422, "/events", "required"},
		{"an empty list", "POST", "/v1/events/bulk", `{"events": []}`, 422, "/events", "too_few"},
		{"something else", "POST", "/v1/events/bulk", `{"events": {"a": 1}}`, 422, "/events", "wrong_type"},
		{"null", "POST", "/v1/events/bulk", `{"events": null}`, 422, "/events", "wrong_type"},
		{"more than a thousand", "POST", "/v1/events/bulk", `{"events": [` + many + `{}]}`, 422, "/events", "too_many"},
		{"two lists", "POST", "/v1/events/bulk", `{"events": [1], "events": [2]}`, 422, "/events", "repeated"},
		{"another field", "POST", "/v1/events/bulk", `{"events": [1], "dry": true}`, 422, "/dry", "unknown_field"},
		{"a list that does not end", "POST", "/v1/events/bulk", `{"events": [{"profile_key": "c1", "event": "x"}, {"prof`, 400, "", "bad_json"},
		{"an item that is no JSON", "POST", "/v1/events/bulk", `{"events": [{"profile_key": "c1", "event": "x"}, nope]}`, 400, "", "bad_json"},
		{"a second value", "POST", "/v1/events/bulk", `{"events": [1]} {}`, 400, "", "trailing_bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			b.do(c.method, c.path, c.body).refuses(c)
		})
	}
	b.WantCount(0, `select count(*) from trigger_events`)
}

// A bulk may have a thousand items, and its results have their order.
func TestBulkOfAThousand(t *testing.T) {
	b := setup(t)
	var items []object
	for i := range 1000 {
		n := i % 500
		items = append(items, object{"profile_key": fmt.Sprint("c", n), "event": fmt.Sprint("seen ", n%7), "source_id": fmt.Sprint(n)})
	}
	got := b.do("POST", "/v1/events/bulk", object{"events": items}).is(202)
	if diff := cmp.Diff(object{"accepted": 500.0, "duplicate": 500.0, "invalid": 0.0, "overloaded": 0.0}, got.json["counts"]); diff != "" {
		t.Errorf("%.300s", got.body)
	}
	results := got.json["results"].([]any)
	for i := range 500 {
		if first, second := results[i].(object), results[i+500].(object); first["id"] != second["id"] || second["status"] != "duplicate" {
			t.Fatalf("item %d and its double: %v, %v", i, first, second)
		}
	}
	b.WantCount(500, `select count(*) from trigger_events
		where profile_key = 'c' || source_id and name = 'seen ' || source_id::int % 7`)
}

// A broken enrollment is answered with its faults, and the others are enrolled.
func TestBrokenEnrollments(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.enrolled(w, "c9")
	path := "/v1/flows/" + w.flow + "/enrollments/bulk"
	items := `{"profile_key": "c1"}, {"profile_key": "c2", "event": "x"}, {"profile_key": "c1"}, 7, {"profile_key": "c9"},
		{"profile_key": "c3", "source_id": "a"}, {"profile_key": "c3", "source_id": "a"}`
	for _, dry := range []string{"?dry_run=true", ""} {
		got := b.do("POST", path+dry, `{"enrollments": [`+items+`]}`).is(200)
		want := []string{"", "/enrollments/1/event unknown_field", "", "/enrollments/3 wrong_type", "", "", ""}
		if diff := cmp.Diff(want, got.itemFaults()); diff != "" {
			t.Error(diff)
		}
		var results []string
		for _, r := range got.json["results"].([]any) {
			results = append(results, r.(object)["status"].(string))
		}
		if id := got.json["results"].([]any)[0].(object)["enrollment_id"]; got.json["dry_run"] != (dry != "") || (id == nil) != (dry != "") {
			t.Errorf("%s: %s", dry, got.body)
		}
		if have := strings.Join(results, " "); have != "enrolled invalid refused invalid refused enrolled refused" {
			t.Errorf("%s: %s: %s", dry, have, got.body)
		}
	}
	b.WantCount(3, `select count(*) from enrollments`)
}

// FuzzItems checks that each item of a bulk is accepted or has faults, whose pointers lead
// into the list.
func FuzzItems(f *testing.F) {
	for _, broken := range brokenItems {
		f.Add([]byte(broken.item))
	}
	f.Add([]byte(`{"profile_key": "c1", "event": "x"}, 1, [{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		body := []byte(`{"events": [` + string(text) + `]}`)
		if _, err := strict.DecodeAround(body, "events"); err != nil {
			return
		}
		var in newEvents
		if err := (&call{body: body}).bind(&in); err != nil {
			t.Fatalf("%q passed and cannot be read: %v", text, err)
		}
		bulk := checkItems[client.NewEvent]("events", "NewEvent", in.Events)
		sound := 0
		for i, one := range bulk.items {
			if len(one.faults) == 0 {
				sound++
			}
			for _, fault := range one.faults {
				if !strings.HasPrefix(fault.Pointer, fmt.Sprintf("/events/%d", i)) || fault.Detail == "" {
					t.Errorf("%q: %+v", text, fault)
				}
			}
		}
		if sound != len(bulk.sound) {
			t.Errorf("%q: %d without a fault, %d are sound", text, sound, len(bulk.sound))
		}
	})
}
