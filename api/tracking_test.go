package api

import (
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/message"
)

// checkTracking loads the pixel of a message and follows a link.
func (b *bundle) checkTracking() {
	b.T.Helper()
	s, err := b.tracking.Signer(b.T.Context(), b.Workspace, time.Now(), message.Track{Opens: true, Clicks: true})
	b.Must(err)
	to := s.Of(publicURL, "", lemma.NewID(), lemma.NewID())
	b.do("GET", strings.TrimPrefix(to.Open, publicURL), nil, header("Authorization", "")).is(200)
	got := b.do("GET", strings.TrimPrefix(to.Click(0, "https://shop.example/"), publicURL), nil, header("Authorization", "")).is(302)
	if got.header.Get("Location") != "https://shop.example/" {
		b.T.Errorf("%v", got.header)
	}
	b.do("GET", "/c/x", nil, header("Authorization", "")).is(404)
	b.do("POST", "/c/x", nil, header("Authorization", "")).is(405)
}

func TestTemplatesThatTrack(t *testing.T) {
	b := setup(t)
	made := b.do("POST", "/v1/templates", object{"name": "t", "subject": "s", "html": "<p>x", "track_opens": true,
		"track_clicks": false}).is(201)
	path := "/v1/templates/" + made.text("id") + "/versions"
	if got := b.do("GET", path+"/1", nil).is(200); got.json["track_opens"] != true || got.json["track_clicks"] != false {
		t.Errorf("%s", got.body)
	}
	b.do("POST", path, object{"subject": "s", "html": "<p>x"}).is(201)
	if got := b.do("GET", path+"/2", nil).is(200); got.json["track_opens"] != nil || got.json["track_clicks"] != nil {
		t.Errorf("%s", got.body)
	}
	b.do("POST", "/v1/templates", object{"name": "u", "channel": "sms", "text": "s", "track_clicks": true}).is(422)
}
