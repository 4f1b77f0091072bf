package gateway

import (
	"net/http"
	"testing"
	"time"

	"lemma/sender"
	"lemma/signing"
)

// FuzzReceive: any body that is signed is read or refused, and each report has an id.
func FuzzReceive(f *testing.F) {
	for _, seed := range []string{
		`{"type":"delivered","notification_id":"ntf_x","attempt":1,"occurred_at":"2026-07-01T12:00:00Z"}`,
		`{"events":[{"type":"bounced","code":550},{"id":"a","type":"opened"}]}`, `{"type":"delivered","events":[{"type":"opened"}]}`,
		`{}`, `[]`, `null`, ``, `{"events":[null]}`, `{"type":"delivered","attempt":1e300}`, "{\"type\":\"delivered\",\"id\":\"\\u0000\"}",
	} {
		f.Add([]byte(seed))
	}
	key := make([]byte, 32)
	r := NewReceiver(key)
	f.Fuzz(func(t *testing.T, body []byte) {
		header := http.Header{}
		signing.Set(header, [][]byte{key}, "e", time.Now(), body)
		reports, err := r.Receive(t.Context(), sender.WebhookRequest{Header: header, Body: body, At: time.Now()})
		if err == nil && len(reports) == 0 {
			t.Error("no reports and no error")
		}
		for _, one := range reports {
			if one.ID == "" || one.OccurredAt.IsZero() {
				t.Errorf("%+v", one)
			}
		}
		if reports, err := r.Receive(t.Context(), sender.WebhookRequest{Header: header, Body: append(body, ' '), At: time.Now()}); err == nil {
			t.Errorf("another body is read: %+v", reports)
		}
	})
}
