package sender

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/notifications"
)

// Headers are rendered with each recipient's data, the same at both attempts. A
// recipient whose header would contain a line break is skipped.
func TestHeadersAreRenderedForEachRecipient(t *testing.T) {
	b := setup(t)
	b.Exec(`update contents set headers = '{"X-Shop": "1", "X-Name": "<{{ name | url_encode }}>"}'`)
	b.insert(3, 10, 2)
	b.Exec(`update notifications set payload = '{"name":"N 1&é"}' where profile_key = '1'`)
	b.Exec(`update contents set headers = headers || '{"X-Raw": "{{ raw }}"}'`)
	b.Exec(`update notifications set payload = '{"name":"N2","raw":"a\r\nBcc: x@shop.example"}' where profile_key = '2'`)
	b.carrier.then[addressOf(1)] = []Outcome{Unknown}
	b.work(b.sender())
	b.reap(b.sender())
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 2, Skipped: 1})
	if status, reason := b.status(2); status != "skipped" || reason != "template_error" || b.carrier.called(addressOf(2)) != 0 {
		t.Errorf("a line break: %s (%s), %d calls", status, reason, b.carrier.called(addressOf(2)))
	}
	sent := b.carrier.sent[addressOf(1)]
	if len(sent) != 2 {
		t.Fatalf("%d calls", len(sent))
	}
	for _, m := range sent {
		if d := cmp.Diff([][2]string{{"X-Name", "<N+1%26%C3%A9>"}, {"X-Shop", "1"}}, m.Headers); d != "" {
			t.Errorf("attempt %d: %s", m.Attempt, d)
		}
	}
}
