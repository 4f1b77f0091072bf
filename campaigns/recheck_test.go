package campaigns

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/pgtest"
)

// none takes no rows.
func none(audience.Row) error { return nil }

// Recheck yields the current rows, and all rows of a profile that has several.
func TestRecheckReadsTheAudienceAsItIsNow(t *testing.T) {
	b := setup(t, 6)
	id := b.sent().ID
	b.fanout(id)
	b.ExecDB(`update customers set opted_out = true where id = '1'`)
	b.ExecDB(`delete from customers where id = '2'`)
	b.ExecDB(`update customers set email = 'new@shop.example' where id = '3'`)
	b.ExecDB(`insert into customers values ('4', 'second@shop.example', 'x', false)`)
	got := map[string]string{}
	found, err := b.Recheck(context.Background(), b.Workspace, id, []string{"1", "2", "3", "4", "5"}, func(r audience.Row) error {
		got[r.Key] += fmt.Sprintf("%s %v;", r.Email, r.OptedOut)
		return nil
	})
	if err != nil || !found {
		t.Fatal(found, err)
	}
	want := map[string]string{"1": "c1@shop.example true;", "3": "new@shop.example false;",
		"4": "c4@shop.example false;second@shop.example false;", "5": "c5@shop.example false;"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if found, err := b.Recheck(context.Background(), b.Workspace, uuid.New(), []string{"1"}, none); found || err != nil {
		t.Errorf("of an origin that is no campaign: %v, %v", found, err)
	}
}

// The wait of a recipient begins when the audience is read and not when the
// recipient is written: a slow source or a paused process may lie between them.
func TestTheWaitCountsFromTheReading(t *testing.T) {
	b := setup(t, 40)
	id := b.sent().ID
	var read time.Time
	b.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if at == "writing" {
			b.Must(b.Pool.QueryRow(context.Background(), `select clock_timestamp()`).Scan(&read))
		}
	}
	b.fanout(id)
	since := pgtest.One[time.Time](b.T, b.Pool, `select max(created_at) from batches where workspace_id = $1`, b.Workspace)
	if read.IsZero() || !since.Before(read) {
		t.Errorf("read before %v, and it counts from %v", read, since)
	}
}

// While the source cannot be read again, the campaign shows the reason. A source
// that stays unavailable, or an audience that is no longer valid, pauses it. After
// a successful read the reason is cleared.
func TestAnAudienceThatCannotBeReadAgain(t *testing.T) {
	b := setup(t, 6)
	ctx := context.Background()
	id := b.sent().ID
	b.fanout(id)
	ask := func() error { _, err := b.Recheck(ctx, b.Workspace, id, []string{"1"}, none); return err }
	want := func(what string, status Status, reason string) {
		t.Helper()
		c := b.get(id)
		if c.Status != status || c.StatusReason != reason || (c.StatusDetail == "") != (reason == "") {
			t.Errorf("%s: it is %s (%s: %s)", what, c.Status, c.StatusReason, c.StatusDetail)
		}
	}
	b.ExecDB(`alter role ` + b.Role + ` connection limit 0`)
	for range 2 {
		if err := ask(); lemma.KindOf(err) != lemma.Unavailable {
			t.Fatalf("got %v", err)
		}
	}
	want("while it is away", Sending, "source_unavailable")
	b.ExecDB(`alter role ` + b.Role + ` connection limit -1`)
	b.Must(ask())
	want("when it is back", Sending, "")
	b.Exec(`update campaigns set status_reason = 'fanout_queued', status_detail = 'waits' where id = $1`, id)
	b.Must(ask())
	want("when it waits for something else", Sending, "fanout_queued")

	b.ExecDB(`alter role ` + b.Role + ` connection limit 0`)
	b.deps.Audiences.Close() // since its connection is still open
	_ = ask()
	b.Exec(`update campaigns set unchecked_since = now() - interval '16 minutes' where id = $1`, id)
	_ = ask()
	want("when it stays away", Paused, "source_unavailable")
	b.ExecDB(`alter role ` + b.Role + ` connection limit -1`)
	b.Must(ask()) // a worker had begun before the pause
	want("when it is back after the pause", Paused, "source_unavailable")
	_, err := b.Resume(ctx, b.Workspace, id, uuid.Nil)
	b.Must(err)
	want("when a person resumes", Sending, "")
	_, err = b.Pause(ctx, b.Workspace, id, uuid.Nil)
	b.Must(err)
	b.ExecDB(`alter role ` + b.Role + ` connection limit 0`)
	b.deps.Audiences.Close()
	_ = ask()
	if c := b.get(id); c.Status != Paused || c.StatusReason != "requested" || c.StatusDetail != "" {
		t.Errorf("when a person has paused it: it is %s (%s: %s)", c.Status, c.StatusReason, c.StatusDetail)
	}
	b.ExecDB(`alter role ` + b.Role + ` connection limit -1`)
	_, err = b.Resume(ctx, b.Workspace, id, uuid.Nil)
	b.Must(err)
	b.Must(ask())

	b.ExecDB(`alter table customers rename column opted_out to gone`)
	b.deps.Audiences.Close()
	if err := ask(); err == nil {
		t.Fatal("no error")
	}
	want("when the column is gone", Paused, "source_changed")
}

// BenchmarkRecheck measures the cost of one batch for the customer's database.
func BenchmarkRecheck(b *testing.B) {
	for _, c := range []struct {
		people int
		index  string
	}{{100_000, ""}, {100_000, `create unique index on customers (id)`}, {1_000_000, `create unique index on customers (id)`},
		{1_000_000, ""}} {
		b.Run(fmt.Sprintf("%d people, index %v", c.people, c.index != ""), func(b *testing.B) {
			s := open(b, c.people)
			if c.index != "" {
				s.ExecDB(c.index)
			}
			s.ExecDB(`analyze customers`)
			id := s.sent().ID
			keys := make([]string, 1000)
			begun := time.Now()
			n := 0
			for b.Loop() {
				for i := range keys {
					keys[i] = fmt.Sprint((n*7919+i*97)%c.people + 1)
				}
				n++
				rows := 0
				_, err := s.Recheck(context.Background(), s.Workspace, id, keys, func(audience.Row) error { rows++; return nil })
				if err != nil || rows != len(keys) {
					b.Fatal(rows, err)
				}
			}
			b.ReportMetric(float64(time.Since(begun).Microseconds())/float64(n*len(keys)), "us/row")
		})
	}
}
