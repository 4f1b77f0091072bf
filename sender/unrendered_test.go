package sender

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma/lifecycle"
	"lemma/notifications"
)

// failing makes every nth recipient's message impossible to render.
func (b *bundle) failing(n int) {
	b.Exec(`update template_versions set subject = '{{ name | append: "" }}'`)
	b.Exec(`update notifications set payload = '{"name":""}' where workspace_id = $1 and profile_key::int % $2 = 0`, b.Workspace, n)
}

// The counters are checked after some errors, and rows that have failed stay skipped
// when the origin is paused then.
func TestTemplateErrorsAreChecked(t *testing.T) {
	b := setup(t)
	b.insert(400, 100, 2)
	b.failing(2)
	s := b.sender()
	checks, last := 0, ""
	s.errors = func(ctx context.Context, ws, origin uuid.UUID, detail string) error {
		checks++
		last = detail
		_, err := s.pause(ctx, ws, origin, uuid.Nil, lifecycle.Cause{Reason: "template_errors", Detail: detail})
		return err
	}
	b.work(s)
	got := b.counts()
	if checks != 1 || got.Skipped < leastStep || got.Skipped > 3*leastStep || got.Pending < 300 ||
		got.SkippedBy["template_error"] != got.Skipped || !got.Balanced {
		t.Errorf("%d checks, %+v", checks, got)
	}
	if !strings.Contains(last, "the rendered subject is empty") {
		t.Errorf("the last error is %q", last)
	}
}

// Few errors lead to no check, and many to few of them.
func TestChecksOfTemplateErrorsAreRare(t *testing.T) {
	t.Parallel()
	var e errorCounts
	origin, checks := uuid.New(), 0
	for range leastStep - 1 {
		if e.due(origin, 1) || e.due(uuid.New(), 1) {
			t.Fatal("checked for few errors")
		}
	}
	for range 100_000 {
		if e.due(origin, 1) {
			checks++
		}
	}
	if checks < 100_000/mostStep || checks > 100_000/mostStep+60 {
		t.Errorf("%d checks", checks)
	}
	for range 2 * mostCounts {
		e.due(uuid.New(), 1)
	}
	if len(e.counts) > mostCounts+1 {
		t.Errorf("%d origins are remembered", len(e.counts))
	}
}

// A check that fails changes nothing.
func TestAFailedCheckDoesNotConcernTheBatch(t *testing.T) {
	b := setup(t)
	b.insert(40, 40, 2)
	b.failing(2)
	s := b.sender()
	s.errors = func(context.Context, uuid.UUID, uuid.UUID, string) error { return context.DeadlineExceeded }
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 20, Skipped: 20})
}
