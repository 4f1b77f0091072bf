package api

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	diff "github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/page"
)

// notByTime are the lists that are not ordered by the time of creation. openapi.yaml
// gives the reason.
var notByTime = []string{"listNotifications", "listWebhookMessages"}

// lists returns the operations of all lists by their paths, with the ids of w.
func (b *bundle) lists(w world) map[string]*openapi3.Operation {
	b.T.Helper()
	ids := strings.NewReplacer("/v1/data_sources/{id}", "/v1/data_sources/"+w.source, "/v1/templates/{id}", "/v1/templates/"+w.template,
		"/v1/flows/{id}", "/v1/flows/"+w.flow, "/v1/webhook_endpoints/{id}", "/v1/webhook_endpoints/"+w.endpoint)
	found := map[string]*openapi3.Operation{}
	for path, item := range contract().Paths.Map() {
		if op := item.Get; op != nil && takes(op, "cursor") {
			found[ids.Replace(path)] = op
		}
	}
	if len(found) < 17 {
		b.T.Fatalf("the contract has %d lists", len(found))
	}
	return found
}

func takes(op *openapi3.Operation, name string) bool {
	return op.Parameters.GetByInAndName("query", name) != nil
}

// createSeveral creates several of everything that has a list.
func (b *bundle) createSeveral(w world) {
	b.T.Helper()
	for _, name := range []string{"Alpha", "beta 50%", "Gamma_1"} {
		b.do("POST", "/v1/data_sources", object{"name": name, "kind": "postgres", "dsn": "postgres://u:p@db.example.com/x"}).is(201)
		b.do("POST", "/v1/audiences",
			object{"name": name, "data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"}).is(201)
		b.do("POST", "/v1/templates", object{"name": name, "subject": "s", "text": "t"}).is(201)
		b.do("POST", "/v1/templates/"+w.template+"/versions", object{"subject": name, "text": "t"}).is(201)
		b.do("POST", "/v1/providers", object{"name": name, "kind": "null", "config": object{}}).is(201)
		b.do("POST", "/v1/campaigns", w.newCampaign(object{"name": name})).is(201)
		b.do("POST", "/v1/flows", object{"name": name}).is(201)
		b.do("POST", "/v1/flows/"+w.flow+"/versions", object{"definition": w.definition(nil)}).is(201)
		b.do("POST", "/v1/webhook_endpoints", object{"name": name, "url": "https://x.example.com"}).is(201)
		b.do("POST", "/v1/api_keys", object{"name": name, "scopes": []string{"flows:read"}}).is(201)
	}
	b.do("PATCH", "/v1/webhook_endpoints/"+w.endpoint, object{"status": "disabled"}).is(200)
	b.do("POST", "/v1/data_sources/"+w.source+"/test", nil).is(200)
	b.do("DELETE", "/v1/api_keys/"+b.do("POST", "/v1/api_keys", object{"name": "Old", "scopes": []string{"flows:read"}}).id(), nil).is(204)
	b.do("POST", "/v1/campaigns/"+w.campaign+"/send", nil).is(202)
	for _, name := range []string{"X", "Y", "Z"} {
		tested := b.do("POST", "/v1/campaigns", w.newCampaign(object{"name": name, "experiment": experimentWith(
			object{"variants": []object{{"name": "A", "weight": 50}, {"name": "B", "weight": 50, "subject": "Look"}}})})).is(201)
		if name == "Y" {
			b.do("POST", "/v1/campaigns/"+tested.id()+"/send", nil).is(202)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		x := b.do("POST", "/v1/exports", object{"type": "events", "format": "csv"}).is(202)
		if name == "b" {
			b.do("POST", "/v1/exports/"+x.id()+"/cancel", nil).is(200)
		}
		b.do("POST", "/v1/topics", object{"name": "Topic " + name}).is(201)
		b.do("POST", "/v1/suppressions", object{"channel": "email", "address": name + "@example.com"}).is(201)
	}
	flow := "/v1/flows/" + w.flow
	b.do("POST", flow+"/versions/1/publish", nil).is(202)
	for _, profile := range []string{"c1", "c2", "c3"} {
		b.do("POST", "/v1/events", object{"profile_key": "c1", "event": "visited"}).is(202)
		made := b.do("POST", flow+"/enrollments", object{"profile_key": profile}).is(201)
		b.do("POST", flow+"/enrollments", object{"profile_key": profile}).is(200)
		if profile == "c2" {
			b.do("POST", "/v1/enrollments/"+made.text("enrollment_id")+"/exit", nil).is(200)
		}
	}
	b.do("POST", flow+"/pause", nil).is(202)
	b.do("POST", flow+"/resume", nil).is(202)
}

// Each list can be sorted and filtered by the parameters that the contract has for it.
// A list of things with a name or a status has a filter by it.
func TestLists(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.createSeveral(w)
	for path, op := range b.lists(w) {
		if slices.Contains(notByTime, op.OperationID) {
			continue
		}
		t.Run(op.OperationID, func(t *testing.T) {
			l := &listing{t: t, b: b, path: path, op: op}
			l.all = l.read(nil)
			if len(l.all) < 3 {
				t.Fatalf("%d in %s", len(l.all), path)
			}
			l.orders()
			l.times()
			l.names()
			l.statuses()
		})
	}
}

// listing is a list with its parameters.
type listing struct {
	t    *testing.T
	b    *bundle
	path string
	op   *openapi3.Operation
	all  []object // newest first
}

func (l *listing) query(q url.Values) string {
	all := url.Values{}
	if takes(l.op, "profile_key") && l.op.Parameters.GetByInAndName("query", "profile_key").Required {
		all.Set("profile_key", "c1")
	}
	for name := range q {
		all.Set(name, q.Get(name))
	}
	return l.path + "?" + all.Encode()
}

// read reads a list to its end, in pages of two.
func (l *listing) read(q url.Values) []object {
	l.t.Helper()
	page := url.Values{"limit": {"2"}}
	for name := range q {
		page.Set(name, q.Get(name))
	}
	var all []object
	for {
		got := l.b.do("GET", l.query(page), nil).is(200)
		for _, one := range got.json["data"].([]any) {
			all = append(all, one.(object))
		}
		next, more := got.json["next_cursor"].(string)
		if !more || len(all) > 100 {
			return all
		}
		page.Set("cursor", next)
	}
}

func same(list []object) []string {
	texts := []string{}
	for _, one := range list {
		texts = append(texts, fmt.Sprint(one))
	}
	return texts
}

func (l *listing) wants(want []object, q url.Values) {
	l.t.Helper()
	if d := diff.Diff(same(want), same(l.read(q))); d != "" {
		l.t.Errorf("%v: %s", q, d)
	}
}

func (l *listing) where(keep func(object) bool) []object {
	return slices.DeleteFunc(slices.Clone(l.all), func(o object) bool { return !keep(o) })
}

func (l *listing) orders() {
	l.t.Helper()
	oldest := slices.Clone(l.all)
	slices.Reverse(oldest)
	if !slices.IsSortedFunc(oldest, func(a, b object) int { return created(a).Compare(created(b)) }) {
		l.t.Errorf("not newest first: %v", l.all)
	}
	l.wants(oldest, url.Values{"sort": {"created_at"}})
	l.wants(l.all, url.Values{"sort": {"-created_at"}})
	if named := takes(l.op, "name"); named {
		l.byName()
	}
	first := l.b.do("GET", l.query(url.Values{"limit": {"1"}}), nil).is(200)
	l.b.do("GET", l.query(url.Values{"limit": {"1"}, "sort": {"created_at"}, "cursor": {first.text("next_cursor")}}), nil).
		fault(400, "?cursor", "invalid_cursor")
	l.b.do("GET", l.query(url.Values{"sort": {"size"}}), nil).fault(400, "?sort", "not_allowed")
	l.b.do("GET", l.query(url.Values{"cursor": {"abc"}}), nil).fault(400, "?cursor", "invalid_cursor")
}

func (l *listing) byName() {
	l.t.Helper()
	names := func(list []object) (all []string) {
		for _, o := range list {
			all = append(all, o["name"].(string))
		}
		return all
	}
	up, down := l.read(url.Values{"sort": {"name"}}), l.read(url.Values{"sort": {"-name"}})
	slices.Reverse(down)
	if d := diff.Diff(same(up), same(down)); d != "" {
		l.t.Errorf("name and -name: %s", d)
	}
	fold := func(a, b string) int { return cmp.Compare(strings.ToLower(a), strings.ToLower(b)) }
	if got := names(up); len(up) != len(l.all) || !slices.IsSortedFunc(got, fold) &&
		!slices.IsSorted(got) { // in the order of the database's collation
		l.t.Errorf("by name: %q", got)
	}
}

func created(o object) time.Time {
	at, err := time.Parse(time.RFC3339, o["created_at"].(string))
	if err != nil {
		panic(err)
	}
	return at
}

func (l *listing) times() {
	l.t.Helper()
	middle := l.all[1]["created_at"].(string)
	at := created(l.all[1])
	l.wants(l.where(func(o object) bool { return !created(o).Before(at) }), url.Values{"created_after": {middle}})
	l.wants(l.where(func(o object) bool { return created(o).Before(at) }), url.Values{"created_before": {middle}})
	l.wants(nil, url.Values{"created_after": {"2126-01-01T00:00:00Z"}})
	l.b.do("GET", l.query(url.Values{"created_after": {"yesterday"}}), nil).fault(400, "?created_after", "bad_format")
}

func (l *listing) names() {
	l.t.Helper()
	if _, named := l.all[0]["name"]; named != takes(l.op, "name") {
		l.t.Errorf("things with a name: %v, a filter: %v", named, !named)
	}
	if !takes(l.op, "name") {
		return
	}
	for _, text := range []string{"eta 5", "ALPHA", "50%", "_1", "no such"} {
		has := func(o object) bool {
			return strings.Contains(strings.ToLower(o["name"].(string)), strings.ToLower(text))
		}
		l.wants(l.where(has), url.Values{"name": {text}})
	}
}

func (l *listing) statuses() {
	l.t.Helper()
	if _, has := l.all[0]["status"]; has != takes(l.op, "status") {
		l.t.Errorf("things with a status: %v, a filter: %v", has, !has)
	}
	if !takes(l.op, "status") {
		return
	}
	seen := map[string]bool{}
	for _, o := range l.all {
		seen[o["status"].(string)] = true
	}
	if len(seen) < 2 {
		l.t.Errorf("all have one status: %v", seen)
	}
	for status := range seen {
		is := func(o object) bool {
			return o["status"] == status || status == "active" && o["status"] == "waiting" // active covers waiting
		}
		l.wants(l.where(is), url.Values{"status": {status}})
	}
	l.b.do("GET", l.query(url.Values{"status": {"lost"}}), nil).fault(400, "?status", "not_allowed")
}

// A page with large rows ends before its limit, and the next page continues there.
func TestListsOfLargeRows(t *testing.T) {
	b := setup(t)
	w := b.world()
	const rows = 150
	for path, of := range map[string]struct{ prefix, id, sql string }{
		"/v1/audiences": {lemma.PrefixAudience, w.audience, `
			insert into audiences (workspace_id, id, data_source_id, name, sql, key_column, email_column, columns)
			select workspace_id, gen_random_uuid(), data_source_id, 'Large ' || n, repeat('x', 64 * 1024), key_column, email_column, columns
			from audiences, generate_series(2, $2) n where id = $1`},
		"/v1/flows/" + w.flow + "/versions": {lemma.PrefixFlow, w.flow, `
			insert into flow_versions (workspace_id, flow_id, version, status, definition, request)
			select workspace_id, flow_id, n, 'draft', '{"description":"' || repeat('x', 64 * 1024) || '"}', gen_random_uuid()
			from flow_versions, generate_series(2, $2) n where flow_id = $1 and version = 1`},
	} {
		id, _ := lemma.ParseID(of.prefix, of.id)
		_, err := b.Pool.Exec(t.Context(), of.sql, id, rows)
		b.Must(err)
		listed, next := 0, ""
		for pages := 0; pages == 0 || next != ""; pages++ {
			got := b.do("GET", path+"?limit=200"+next, nil).is(200)
			if len(got.body) > page.MaxBytes+1<<20 || pages > rows {
				t.Fatalf("%s: page %d has %d bytes", path, pages, len(got.body))
			}
			listed += len(got.json["data"].([]any))
			if next = ""; got.json["has_more"].(bool) {
				next = "&cursor=" + got.json["next_cursor"].(string)
			}
		}
		if listed != rows {
			t.Errorf("%s: %d rows are listed", path, listed)
		}
	}
}

// The list of a flow's enrollments is 404 for an unknown flow.
func TestEnrollmentsOfAFlow(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.createSeveral(w)
	flow := "/v1/flows/" + w.flow
	own, all := b.do("GET", flow+"/enrollments", nil).is(200), b.do("GET", "/v1/enrollments?flow_id="+w.flow, nil).is(200)
	if string(own.body) != string(all.body) || len(own.json["data"].([]any)) != 3 {
		t.Errorf("%s and %s", own.body, all.body)
	}
	b.do("GET", flow+"/enrollments?flow_id="+w.flow, nil).fault(400, "?flow_id", "unknown_parameter")
	b.do("GET", "/v1/flows/"+lemma.FormatID(lemma.PrefixFlow, lemma.NewID())+"/enrollments", nil).is(404)
	other := b.do("POST", "/v1/flows", object{"name": "Another"}).is(201).id()
	if got := b.do("GET", "/v1/flows/"+other+"/enrollments", nil).is(200); len(got.json["data"].([]any)) != 0 {
		t.Errorf("of another flow: %s", got.body)
	}
	for query, want := range map[string]int{"?profile_key=c2": 1, "?status=exited": 1, "?node=nowhere": 0, "?version=1": 3, "?version=2": 0,
		"?blocked_reason=any": 0} {
		if got := b.do("GET", flow+"/enrollments"+query, nil).is(200); len(got.json["data"].([]any)) != want {
			t.Errorf("%s: %s", query, got.body)
		}
	}
	first := b.do("GET", flow+"/enrollments?limit=1", nil).is(200).text("next_cursor")
	b.do("GET", flow+"/enrollments?limit=1&status=exited&cursor="+first, nil).fault(400, "?cursor", "invalid_cursor")
}

// One field selects the variant of a union, and the faults are those of that variant.
func TestUnions(t *testing.T) {
	b := setup(t)
	w := b.world()
	versions := "/v1/flows/" + w.flow + "/versions"
	node := func(n object) object {
		return object{"definition": w.definition(object{"nodes": object{"a/b": n}, "start": "a/b"})}
	}
	trigger := func(n any) object { return object{"definition": w.definition(object{"triggers": []any{n}})} }
	for _, c := range []bad{
		{"no type", "POST", versions, node(object{"next": "x"}), 422, "/definition/nodes/a~1b/type", "required"},
		{"an unknown type", "POST", versions, node(object{"type": "wish"}), 422, "/definition/nodes/a~1b/type", "not_allowed"},
		{"a type that is no text", "POST", versions, node(object{"type": 7}), 422, "/definition/nodes/a~1b/type", "wrong_type"},
		{"no node", "POST", versions, object{"definition": w.definition(object{"nodes": object{"a": 7}})},
			422, "/definition/nodes/a", "wrong_type"},
		{"a field of another type", "POST", versions, node(object{"type": "delay", "arms": []any{}}),
			422, "/definition/nodes/a~1b/arms", "unknown_field"},
		{"a fault deep inside", "POST", versions, node(object{"type": "branch", "cases": []object{{"if": 1}}}),
			422, "/definition/nodes/a~1b/cases/0/if", "wrong_type"},
		{"a trigger of no type", "POST", versions, trigger(object{"event": "x"}), 422, "/definition/triggers/0/type", "required"},
		{"a trigger's field of another type", "POST", versions, trigger(object{"type": "audience", "event": "x"}),
			422, "/definition/triggers/0/event", "unknown_field"},
		{"a provider of no kind", "POST", "/v1/providers", object{"name": "x", "config": object{}}, 422, "/kind", "required"},
		{"settings of another kind", "POST", "/v1/providers", object{"name": "x", "kind": "null", "config": object{"host": "x"}},
			422, "/config/host", "unknown_field"},
	} {
		b.do(c.method, c.path, c.body).fault(c.status, c.pointer, c.code)
	}
}
