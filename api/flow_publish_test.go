package api

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// A dry run of publishing is refused like publishing: for an invalid or old ETag, and in
// a status that does not allow it.
func TestDryRunOfPublishing(t *testing.T) {
	b := setup(t)
	w := b.world()
	flow := "/v1/flows/" + w.flow
	b.do("POST", flow+"/versions/1/publish", nil).is(202)
	v := b.do("POST", flow+"/versions", object{"definition": w.with("rest", object{"for": "P3D"})}).is(201).header.Get("Location")
	for tag, status := range map[string]int{`"0"`: 412, "nonsense": 400, `"x"`: 412} {
		for _, query := range []string{"?dry_run=true", ""} {
			b.do("POST", v+"/publish"+query, nil, header("If-Match", tag)).is(status)
		}
	}
	plan := b.do("POST", v+"/publish?dry_run=true", nil).is(200)
	tag := plan.header.Get("ETag")
	for path, method := range map[string]string{v + "/plan": "POST", v + "/validate": "GET"} {
		if got := b.do(method, path, nil).is(200).header.Get("ETag"); got != tag {
			t.Errorf("%s has the ETag %s, not %s", path, got, tag)
		}
	}
	if !regexp.MustCompile(`^"[0-9]+-[0-9a-f]{16}"$`).MatchString(tag) {
		t.Errorf("the plan has the ETag %s", tag)
	}
	b.do("PUT", v, object{"definition": w.with("rest", object{"for": "P9D"})}).is(200)
	b.do("POST", v+"/publish", nil, header("If-Match", tag)).is(412)
	b.do("POST", v+"/publish?dry_run=true", nil, header("If-Match", tag)).is(412)
	b.do("POST", flow+"/archive", nil).is(202)
	for _, path := range []string{v + "/publish?dry_run=true", v + "/publish", v + "/plan", flow + "/versions/1/plan"} {
		if got := b.do("POST", path, nil).is(409); got.problem.Code != "invalid_status" {
			t.Errorf("%s: %s", path, got.body)
		}
	}
}

// The ETag of a plan is one of the flow, too, but for publishing it says more: which
// versions of the templates. One of a plan is none of a version of the flow, nor of another thing.
func TestETagsOfPlans(t *testing.T) {
	b := setup(t)
	w := b.world()
	flow, template := "/v1/flows/"+w.flow, "/v1/templates/"+w.template
	tagged := func(tag string) func(*http.Request) { return header("If-Match", tag) }
	old := b.do("POST", flow+"/versions/1/plan", nil).is(200).header.Get("ETag")
	number, _, _ := strings.Cut(strings.Trim(old, `"`), "-")
	b.do("POST", template+"/versions", object{"subject": "s", "text": "t"}).is(201)
	planned := b.do("POST", flow+"/versions/1/plan", nil).is(200).header.Get("ETag")
	for _, tag := range []string{old, "W/" + planned, `"` + number + `-0123"`, old + `, "x"`, `"0", ` + old} {
		b.do("POST", flow+"/versions/1/publish", nil, tagged(tag)).is(412)
		b.do("POST", flow+"/versions/1/publish?dry_run=true", nil, tagged(tag)).is(412)
	}
	for _, tag := range []string{planned, `"` + number + `"`, `"` + number + `", ` + old, old + `, "` + number + `"`, `"0", ` + planned} {
		b.do("POST", flow+"/versions/1/publish?dry_run=true", nil, tagged(tag)).is(200)
	}
	b.do("PUT", flow+"/versions/1", object{"definition": w.definition(nil)}, tagged(planned)).is(412)
	b.do("DELETE", flow+"/versions/1", nil, tagged(planned)).is(412)
	b.do("PATCH", template, object{"name": "x"}, tagged(planned)).is(412)
	b.do("POST", flow+"/versions/1/publish", nil, tagged(planned)).is(202)
	second := b.do("POST", flow+"/versions", object{"definition": w.definition(nil)}).is(201).header.Get("Location")
	plan := b.do("POST", second+"/plan", nil).is(200).header.Get("ETag")
	b.do("POST", flow+"/rollback", object{"to_version": 1}, tagged(planned)).is(412)
	b.do("POST", flow+"/rollback", object{"to_version": 1}, tagged(plan)).is(202)
	b.do("PATCH", flow, object{"name": "x"}, tagged(plan)).is(200)
	b.do("PATCH", flow, object{"name": "y"}, tagged(plan)).is(412)
}
