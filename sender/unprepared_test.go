package sender

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/lifecycle"
	"lemma/unsubscribe"
)

// A batch that cannot be prepared shows why while it waits.
func TestExplainShowsWhyABatchIsNotPrepared(t *testing.T) {
	b := setup(t)
	ref := b.insert(1, 1, 2)[0]
	s := b.sender()
	c, err := s.Claim(t.Context(), ref)
	b.Must(err)
	s.pause = func(context.Context, uuid.UUID, uuid.UUID, uuid.UUID, lifecycle.Cause) (bool, error) {
		return false, nil
	}
	_, err = s.unprepared(t.Context(), c, unsubscribe.ErrNoPublicURL)
	b.Must(err)
	e, err := b.ledger.Explain(t.Context(), b.Workspace, b.origin, keyOf(0))
	b.Must(err)
	if e.Waiting == nil || e.Waiting.For != "due" || !strings.Contains(e.Waiting.Detail, "set LEMMA_PUBLIC_URL") {
		t.Errorf("it waits for %+v", e.Waiting)
	}
}

// A cause is reported once a minute for each workspace, by one of the batches that meet it. Other
// causes and workspaces are reported meanwhile, up to a bound.
func TestACauseIsReportedOnceAMinute(t *testing.T) {
	t.Parallel()
	var r reported
	a, b, now := uuid.New(), uuid.New(), time.Now()
	var first atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if r.due(a, "x", now) {
				first.Add(1)
			}
		})
	}
	all.Wait()
	if n := first.Load(); n != 1 {
		t.Errorf("reported %d times at once", n)
	}
	if !r.due(b, "x", now) || !r.due(a, "y", now) || r.due(a, "x", now.Add(time.Minute)) || !r.due(a, "x", now.Add(61*time.Second)) {
		t.Error("a cause hides that of another workspace, or another cause, or is reported at another time")
	}
	now = now.Add(time.Hour)
	n := 0
	for i := range 2 * mostReports {
		if r.due(a, fmt.Sprint(i), now) {
			n++
		}
	}
	if n != mostReports || len(r.last) != mostReports {
		t.Errorf("%d reports, %d in memory", n, len(r.last))
	}
}
