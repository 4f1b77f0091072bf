package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"lemma"
	"lemma/pgtest"
	"lemma/workspaces"
)

// analyzed makes statistics as autovacuum does: of partitions, and not of partitioned tables.
const analyzed = `do $$ declare one regclass; begin
	for one in select oid from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace loop
		execute 'analyze ' || one;
	end loop;
end $$`

// gets are statements of GETs, and of the metrics, that find what they read by keys, with the indexes
// that they must not use. Other lists are read in parts, each for a limited time.
var gets = map[string]*regexp.Regexp{
	"notifications.readBatches":    regexp.MustCompile(`.`),
	"notifications.readBatchState": regexp.MustCompile(`.`),
	"(*Reader).readRefusals":       regexp.MustCompile(`refusals_age`),
	"(*Reader).countMessages":      regexp.MustCompile(`\(workspace_id = \$1\)"`),
	"(*queue).read":                regexp.MustCompile(`on batches by \S*pkey|Seq Scan on batches`),
}

// What one notification or flow is asked for costs as much as it has, however many others there are.
func TestGetsHaveGoodPlans(t *testing.T) {
	hot := &pgtest.Statements{Settings: session}
	p := startPlanned(t, hot)
	p.live()
	_, token, err := p.Workspaces.CreateKey(t.Context(), p.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "reader", Scopes: []string{workspaces.Admin}})
	p.Must(err)
	get := func(path string) (ids []string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		p.API.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
		var lists map[string]json.RawMessage
		_ = json.Unmarshal(w.Body.Bytes(), &lists)
		for _, list := range lists {
			var all []struct{ ID string }
			_ = json.Unmarshal(list, &all)
			for _, one := range all {
				ids = append(ids, one.ID)
			}
		}
		return ids
	}
	for _, list := range []string{"/v1/notifications?limit=2", "/v1/notifications?limit=2&origin=direct"} {
		for _, id := range get(list) {
			get("/v1/notifications/" + id)
			get("/v1/notifications/" + id + "/explain")
		}
	}
	for _, id := range get("/v1/flows?limit=50") {
		get("/v1/flows/" + id + "/counts")
		get("/v1/flows/" + id + "/refusals")
	}
	_, err = p.metrics.Gather()
	p.Must(err)
	grown := pgtest.DB(t)
	p.fill(grown, 30_000)
	pgtest.Exec(t, grown, analyzed)
	seen := map[string]bool{}
	for _, s := range hot.Scans(t, grown) {
		for caller, bad := range gets {
			if !strings.HasSuffix(s.Caller, caller) {
				continue
			}
			seen[caller] = true
			if fault := badScan(s); fault != "" && bad.MatchString(fault) {
				t.Errorf("%s: %s", s.Caller, fault)
			}
		}
	}
	if len(seen) != len(gets) {
		t.Errorf("only %v are seen", seen)
	}
}
