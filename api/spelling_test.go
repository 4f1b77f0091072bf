package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// Every spelling of a parameter that the contract accepts means the same to the
// handler: dry_run=True must not carry out what the caller only wanted to see.
func TestSpellingsOfParameters(t *testing.T) {
	b := setup(t)
	w := b.world()
	good := w.goodBodies()
	before := b.fingerprint()
	dry := 0
	for _, o := range operations() {
		for path, item := range contract().Paths.Map() {
			for method, op := range item.Operations() {
				if op.OperationID != o.id || op.Parameters.GetByInAndName("query", "dry_run") == nil {
					continue
				}
				dry++
				at := strings.NewReplacer("{id}", map[string]string{"campaigns": w.campaign, "flows": w.flow}[strings.Split(path, "/")[2]], "{n}",
					"1").Replace(path)
				for _, spelling := range []string{"1", "t", "T", "True", "TRUE", "yes", "0", "False", ""} {
					b.do(method, at+"?dry_run="+spelling, good[o.id]).is(http.StatusBadRequest)
				}
			}
		}
	}
	for _, query := range []string{"limit=2.0", "limit=%2B2", "limit=2e0", "limit=0x2", "created_before=2020-02-31T00:00:00Z",
		"created_before=2020-01-01T00:00:60Z", "created_after=9999-12-31T23:59:59-12:00"} {
		b.do("GET", "/v1/templates?"+query, nil).is(400)
	}
	if dry < 3 {
		t.Errorf("only %d operations have a dry run", dry)
	}
	b.unchanged(before)
}

// A time that no answer can show is refused, wherever a request has one.
func TestTimesOutOfRange(t *testing.T) {
	b := setup(t)
	w := b.world()
	before := b.fingerprint()
	for _, at := range []string{"9999-12-31T23:59:59-12:00", "0000-12-31T00:00:00Z", "0001-01-01T00:00:00+12:00",
		"2126-01-01T00:00:00+24:00"} {
		b.do("POST", "/v1/campaigns", w.newCampaign(object{"send_deadline": at})).fault(422, "/send_deadline", "bad_format")
		b.do("PATCH", "/v1/campaigns/"+w.campaign, object{"send_deadline": at}).fault(422, "/send_deadline", "bad_format")
		b.do("POST", "/v1/campaigns/"+w.campaign+"/schedule", object{"at": at}).is(422)
		b.do("POST", "/v1/events", object{"profile_key": "c1", "event": "x", "occurred_at": at}).is(422)
		b.do("POST", "/v1/exports", object{"type": "events", "filters": object{"created_after": at}}).is(422)
		b.do("GET", "/v1/templates?limit=1&created_before="+url.QueryEscape(at), nil).fault(400, "?created_before", "bad_format")
	}
	b.do("POST", "/v1/campaigns/"+w.campaign+"/schedule", object{"at": "9999-12-31T23:59", "timezone": "Pacific/Honolulu"}).is(422)
	b.unchanged(before)
	b.do("GET", "/v1/campaigns", nil).is(200)
}
