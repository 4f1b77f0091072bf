package sender

import (
	"context"
	"strings"
	"testing"
	"time"

	"lemma/notifications"
)

// template replaces the text of the bundle's template.
func (b *bundle) template(text string, variables ...string) {
	b.T.Helper()
	b.Exec(`update template_versions set html = '', text = $2, variables = $3 where workspace_id = $1`, b.Workspace, text, variables)
}

const missing = "{{ name.first }}" // cannot be rendered: name is a text

// Windows without messages are committed one by one, renew the lease and stop when
// they must, as any other.
func TestAWindowWithoutMessagesIsCommitted(t *testing.T) {
	b := setup(t)
	b.template(missing, "name")
	refs := b.insert(50, 50, 2)
	s := b.sender()
	commits := 0
	s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
		if point != "committing" {
			return
		}
		switch commits++; commits {
		case 2:
			b.wantCounts(notifications.Counts{Skipped: 10, Pending: 40})
			b.expireLeases()
		case 3:
			b.WantCount(0, `select count(*) from batches where lease_until < now()`)
			s.Drain()
		}
	}
	if _, err := s.Work(bg, refs[0]); err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Skipped: 30, Pending: 20})
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Skipped: 50})
	if n := b.carrier.called(addressOf(0)); n != 0 {
		t.Errorf("called %d times", n)
	}
}

// Rendering a window is bounded whatever its rows cost: the rest belongs to the next
// window.
func TestRenderingEndsAWindowEarly(t *testing.T) {
	b := setup(t)
	b.template("{{ name"+strings.Repeat(" | strip_html", 100)+" }}"+missing, "name")
	refs := b.insert(10, 10, 2)
	b.Exec(`update notifications set payload = jsonb_build_object('name', repeat('<a> ', 8000)) where workspace_id = $1`, b.Workspace)
	s := b.sender()
	c, err := s.Claim(bg, refs[0])
	b.Must(err)
	d, err := s.content(bg, b.Workspace, c.contentID)
	b.Must(err)
	for left := 9; left >= 0; left-- {
		if w := d.render(c, 10, time.Nanosecond); len(w.skipped) != 1 || len(c.rows) != left {
			t.Fatalf("%d rows rendered, %d left, want %d", len(w.skipped), len(c.rows), left)
		}
	}
}

func TestALeaseThatRenderingOutlastsIsRefused(t *testing.T) {
	if err := (Config{Lease: time.Second, CallTimeout: 100 * time.Millisecond}).Check(); err == nil ||
		!strings.Contains(err.Error(), "rendering") {
		t.Error(err)
	}
}
