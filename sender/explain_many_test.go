package sender

import (
	"strings"
	"testing"
)

// A carrier may report any number of events of one notification. The explanation has the
// first ones and reports how many are left out; all count as evidence.
func TestExplanationOfManyEvents(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	b.carrier.rest = Unknown
	b.work(b.sender())
	b.Exec(`insert into provider_events (workspace_id, id, provider_id, source, source_event_id, origin_id, batch_id, ordinal, attempt,
			kind, type, occurred_at, recorded_at)
		select n.workspace_id, gen_random_uuid(), $2, 'webhook', 'unknown', n.origin_id, n.batch_id, n.ordinal, 1,
			case when i = 300 then 'accepted' else 'deferred' end, 'delivered', now(), now() + i * interval '1 ms'
		from notifications n, generate_series(1, 300) i where n.workspace_id = $1`, b.Workspace, b.provider)
	e := b.explain()
	shown := 0
	last := ""
	for _, s := range e.Steps {
		if s.Event == "evidence" {
			shown++
			last = s.Detail
		}
	}
	if shown != 200 || !strings.HasSuffix(last, "; 100 other events are not shown") {
		t.Errorf("%d events, the last: %q", shown, last)
	}
	if e.DeliveriesAtLeast != 1 {
		t.Error("the acceptance is not counted")
	}
}
