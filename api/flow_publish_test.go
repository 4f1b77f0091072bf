package api

import "testing"

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
