package deliveries

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/events"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/suppression"
)

// bundle is a workspace with a provider and an origin of ten notifications.
type bundle struct {
	pgtest.Shop
	provider, origin uuid.UUID
	*Deliveries
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	return newBundle(pgtest.NewShop(t))
}

func newBundle(s pgtest.Shop) *bundle {
	s.T.Helper()
	b := &bundle{Shop: s, origin: lemma.NewID(), provider: s.NewProvider("http"),
		Deliveries: New(s.Pool, slog.New(slog.DiscardHandler), nil)}
	b.Exec(`insert into templates (workspace_id, id, name, channel) values ($1, $2, 't', 'email')`, b.Workspace, b.provider)
	b.Exec(`insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		values ($1, $2, 1, 'Hi', '', 'Hi', '{}')`, b.Workspace, b.provider)
	b.insert(b.origin, "")
	return b
}

// insert inserts ten notifications of an origin, of a node if there is one.
func (b *bundle) insert(origin uuid.UUID, node string) { b.T.Helper(); b.insertN(10, origin, node) }

func (b *bundle) insertN(n int, origin uuid.UUID, node string) {
	b.T.Helper()
	b.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers, node)
		values ($1, $2, 'email', $3, 1, 'Shop', 'news@shop.example', '', '{}', nullif($4, ''))`, b.Workspace, origin, b.provider, node)
	all := make([]notifications.Recipient, n)
	for i := range all {
		all[i] = notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: address(i)}
	}
	b.Must(pgx.BeginFunc(b.T.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := notifications.New(b.Pool).Insert(b.T.Context(), tx, notifications.Chunk{WorkspaceID: b.Workspace, OriginID: origin,
			ProviderID: b.provider, ContentID: origin, Run: 1, MaxAttempts: 2, BatchSize: 5, Recipients: all})
		return err
	}))
}

func keyOf(i int) uuid.UUID { return lemma.Key("test/1", fmt.Sprint(i)) }

func address(i int) string { return fmt.Sprintf("p%d@shop.example", i) }

// report is one of notification i of an origin.
func report(origin uuid.UUID, i int, kind events.Type, at time.Time) events.Report {
	return events.Report{ID: fmt.Sprint(i, kind, at.UnixNano()), Notification: lemma.FormatNotificationID(origin, keyOf(i)), Attempt: 1,
		Type: kind, OccurredAt: at}
}

func (b *bundle) receive(all ...events.Report) {
	b.T.Helper()
	var received []events.Received
	for _, r := range all {
		received = append(received, events.Received{ProviderID: b.provider, Channel: lemma.Email, Report: r})
	}
	_, err := events.Receive(b.T.Context(), b.Pool, b.Workspace, received)
	b.Must(err)
}

// apply applies all queued events.
func (b *bundle) apply() {
	b.T.Helper()
	for {
		n, err := b.Apply(context.Background())
		b.Must(err)
		if n == 0 {
			return
		}
	}
}

func (b *bundle) list(sql string) []string {
	b.T.Helper()
	rows, err := b.Pool.Query(b.T.Context(), sql, b.Workspace)
	b.Must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	b.Must(err)
	slices.Sort(all)
	return all
}

const (
	states = `select concat_ws(' ', n.profile_key, d.state, d.at) from deliveries d
		join notifications n on n.workspace_id = d.workspace_id and n.origin_id = d.origin_id and n.key = d.key where d.workspace_id = $1`
	counts = `select concat_ws(' ', coalesce(c.node, ''), state, count) from delivery_counts d
		join contents c on c.workspace_id = d.workspace_id and c.id = d.content_id where d.workspace_id = $1 and count <> 0`
	causes = `select concat_ws(' ', channel, address, cause) from suppressions where workspace_id = $1`
)

var start = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func at(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }

// ProviderEvents!RankOnlyRises, ProviderEvents!AppliedOnce: events come in any order,
// each several times, and several processes apply them: the end is the same.
func TestTheOrderOfEventsChangesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for range 4 {
		b := newBundle(pgtest.ShopIn(t, pool))
		b.Subscribe("notification.delivered", "notification.bounced", "notification.complained", "notification.unsubscribed",
			"suppression.added")
		node := lemma.NewID()
		b.insert(node, "welcome")
		var all []events.Report
		for i, kinds := range [][]events.Type{
			{events.TypeAccepted, events.TypeDeferred},
			{events.TypeAccepted, events.TypeDelayed, events.TypeDelivered, events.TypeOpened, events.TypeClicked},
			{events.TypeDelivered, events.TypeBounced},
			{events.TypeDelivered, events.TypeComplained, events.TypeBounced},
			{events.TypeSoftBounced, events.TypeDelivered},
			{events.TypeDelayed, events.TypeUndelivered},
			{events.TypeRejected},
			{events.TypeDelivered, events.TypeUnsubscribed},
		} {
			for n, kind := range kinds {
				all = append(all, report(b.origin, i, kind, at(n)), report(node, i, kind, at(n+1)))
			}
		}
		all = append(all, all...)
		all = append(all, all...)
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		done := make(chan struct{})
		for n := range 4 {
			go func() {
				defer func() { done <- struct{}{} }()
				for i := n; i < len(all); i += 4 {
					b.receive(all[i])
					if rand.N(3) == 0 {
						b.apply()
					}
				}
			}()
		}
		for range 4 {
			<-done
		}
		b.apply()
		var want []string
		for i, state := range []string{"", "delivered 12:01", "bounced 12:01", "complained 12:01", "delivered 12:01", "undelivered 12:01",
			"rejected 12:00", "delivered 12:00"} {
			state, clock, _ := strings.Cut(state, " ")
			if state == "" {
				continue
			}
			var minute int
			_, _ = fmt.Sscanf(clock, "12:%d", &minute)
			if i == 1 {
				minute = 2
			}
			for later := range 2 {
				want = append(want, fmt.Sprintf("%d %s %s", i, state, at(minute+later).Format("2006-01-02 15:04:05+00")))
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, b.list(states)); diff != "" {
			t.Error(diff)
		}
		wantCounts := []string{}
		for _, c := range []string{"bounced 1", "complained 1", "delivered 3", "rejected 1", "undelivered 1"} {
			wantCounts = append(wantCounts, " "+c, "welcome "+c)
		}
		slices.Sort(wantCounts)
		if diff := cmp.Diff(wantCounts, b.list(counts)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"email p2@shop.example hard_bounce", "email p3@shop.example complaint",
			"email p3@shop.example hard_bounce", "email p7@shop.example unsubscribed"}, b.list(causes)); diff != "" {
			t.Error(diff)
		}
		b.wantEvents()
	}
}

// wantEvents checks that each notification has one event of its final state, and each suppression one.
func (b *bundle) wantEvents() {
	b.T.Helper()
	b.WantCount(0, `select count(*) from deliveries d where d.workspace_id = $1 and d.state in ('delivered', 'bounced', 'complained')
		and 1 <> (select count(*) from events_out e where e.workspace_id = $1 and e.type = 'notification.' || d.state
			and e.origin_id = d.origin_id and position(uuid_send(d.key) in e.keys) > 0)`, b.Workspace)
	b.WantCount(2, `select count(*) from events_out where workspace_id = $1 and type = 'notification.unsubscribed'`, b.Workspace)
	b.WantCount(0, `select count(*) from suppressions s where s.workspace_id = $1
		and 1 <> (select count(*) from events_out e where e.workspace_id = $1 and e.type = 'suppression.added'
			and e.details[(position(uuid_send(s.id) in e.keys) + 15) / 16] = s.cause)`, b.Workspace)
}

// A process that ends before the commit has applied nothing.
func TestEffectsAreOneTransaction(t *testing.T) {
	b := setup(t)
	b.receive(report(b.origin, 1, events.TypeBounced, at(0)))
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	queued, err := events.Take(t.Context(), tx, b.Workspace, 0, 10)
	b.Must(err)
	b.Must((&transaction{tx: tx, ws: b.Workspace}).apply(t.Context(), queued))
	b.Must(tx.Rollback(t.Context()))
	b.queue.Pause = 0
	b.Exec(`alter table suppressions rename to away`) // the last effect fails
	if _, err := b.Apply(t.Context()); err == nil {
		t.Error("no error")
	}
	b.Exec(`alter table away rename to suppressions`)
	if got := append(b.list(states), b.list(causes)...); len(got) != 0 {
		t.Errorf("applied: %v", got)
	}
	b.apply()
	if got := append(b.list(counts), b.list(causes)...); len(got) != 2 {
		t.Errorf("applied: %v", got)
	}
}

// Five soft bounces within 30 days suppress, unless a message was delivered in between.
func TestSoftBounces(t *testing.T) {
	now := time.Now()
	day := func(n int) time.Time { return now.AddDate(0, 0, n-40) }
	for name, c := range map[string]struct {
		kinds string // by day: s is a soft bounce, d a delivery, - nothing
		want  int
	}{
		"four":                         {"-----------s-s-s-s", 0},
		"five":                         {"-----------s-s-s-s-s", 1},
		"a delivery in between":        {"-----------s-s-s-d-s-s", 0},
		"five after the delivery":      {"-----------s-d-s-s-s-s-s", 1},
		"the first is older than 30":   {"-----s----------s-s-s-s", 0},
		"more than five":               {"-----------sssssssss", 1},
		"a delivery after the five":    {"-----------sssssd", 1},
		"nothing but deliveries":       {"-----------ddddd", 0},
		"of five the first came twice": {"-----------ss-s-s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			for n, kind := range c.kinds {
				if kind == '-' {
					continue
				}
				origin := lemma.NewID()
				b.insert(origin, "")
				r := report(origin, 1, events.TypeSoftBounced, day(n))
				if kind == 'd' {
					r.Type = events.TypeDelivered
				}
				b.receive(r)
				r.ID += "again"
				b.receive(r)
				b.apply()
			}
			got := b.list(causes)
			if len(got) != c.want || c.want == 1 && got[0] != "email p1@shop.example soft_bounces" {
				t.Errorf("suppressed: %v", got)
			}
		})
	}
	if suppression.SoftBounceLimit != 5 {
		t.Error("the test has another limit")
	}
}

// Late evidence resolves an orphaned notification once and leaves its status.
func TestLateEvidenceResolves(t *testing.T) {
	for name, c := range map[string]struct {
		attempts []string // outcomes, from the first
		reports  []events.Report
		want     string
	}{
		"accepted":                {[]string{"unknown"}, []events.Report{{Type: events.TypeDelivered, Attempt: 1}}, "sent"},
		"accepted, of no attempt": {[]string{"unknown", "unknown"}, []events.Report{{Type: events.TypeBounced}}, "sent"},
		"rejected":                {[]string{"unknown"}, []events.Report{{Type: events.TypeRejected, Attempt: 1}}, "not_sent"},
		"rejected, of no attempt": {[]string{"unknown"}, []events.Report{{Type: events.TypeRejected}}, "not_sent"},
		"one of two rejected":     {[]string{"unknown", "unknown"}, []events.Report{{Type: events.TypeRejected, Attempt: 2}}, ""},
		"two rejections of no attempt": {[]string{"unknown", "unknown"},
			[]events.Report{{Type: events.TypeRejected}, {Type: events.TypeRejected}}, ""},
		"a rejection of no attempt, and one of the second": {[]string{"unknown", "unknown"},
			[]events.Report{{Type: events.TypeRejected}, {Type: events.TypeRejected, Attempt: 2}}, ""},
		"a rejection of an attempt that was not made": {[]string{"unknown"}, []events.Report{{Type: events.TypeRejected, Attempt: 2}}, ""},
		"the second was refused": {[]string{"unknown", "refused"},
			[]events.Report{{Type: events.TypeRejected, Attempt: 1}}, "not_sent"},
		"both rejected": {[]string{"unknown", "unknown"},
			[]events.Report{{Type: events.TypeRejected, Attempt: 2}, {Type: events.TypeRejected, Attempt: 1}}, "not_sent"},
		"the first of a rejected": {[]string{"unknown", "rejected"}, []events.Report{{Type: events.TypeRejected, Attempt: 1}}, "not_sent"},
		"deferred":                {[]string{"unknown"}, []events.Report{{Type: events.TypeDeferred, Attempt: 1}}, ""},
		"the second was accepted": {[]string{"unknown", "accepted"}, []events.Report{{Type: events.TypeDelivered, Attempt: 1}}, ""},
		"it was sent":             {[]string{"accepted"}, []events.Report{{Type: events.TypeDelivered, Attempt: 1}}, ""},
		"rejected, and accepted before": {[]string{"unknown", "unknown"},
			[]events.Report{{Type: events.TypeRejected, Attempt: 2}, {Type: events.TypeAccepted, Attempt: 1}}, "sent"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.attempted(c.attempts...)
			for i, r := range c.reports {
				r.ID, r.Notification, r.OccurredAt = fmt.Sprint(i), lemma.FormatNotificationID(b.origin, keyOf(1)), at(i)
				b.receive(r)
			}
			b.apply()
			got := strings.Join(b.list(`select resolution from resolutions where workspace_id = $1`), ",")
			if got != c.want {
				t.Errorf("resolved as %q, want %q", got, c.want)
			}
		})
	}
}

// attempted writes the outcomes of a notification, from the first.
func (b *bundle) attempted(outcomes ...string) {
	for i, outcome := range outcomes {
		b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
			select workspace_id, batch_id, ordinal, $3, $4, $5, case $4 when 'unknown' then 'reaper' else 'response' end
			from notifications where workspace_id = $1 and key = $2`, b.Workspace, keyOf(1), i+1, outcome, i == len(outcomes)-1)
	}
}

// Evidence that comes after a resolution leaves it.
func TestTheFirstResolutionIsFinal(t *testing.T) {
	b := setup(t)
	b.attempted("unknown")
	for i, kind := range []events.Type{events.TypeRejected, events.TypeAccepted} {
		r := report(b.origin, 1, kind, at(i))
		r.ID = fmt.Sprint(i)
		b.receive(r)
		b.apply()
	}
	if got := b.list(`select resolution from resolutions where workspace_id = $1`); len(got) != 1 || got[0] != "not_sent" {
		t.Errorf("resolved as %v", got)
	}
}

// The reaper orphans a row while an event about it is recorded: what the reaper queued
// resolves it.
func TestEvidenceBesideTheReaper(t *testing.T) {
	b := setup(t)
	var batch uuid.UUID
	var ordinal int16
	b.Must(b.Pool.QueryRow(t.Context(), `select batch_id, ordinal from notifications where workspace_id = $1 and key = $2`,
		b.Workspace, keyOf(1)).Scan(&batch, &ordinal))
	b.receive(report(b.origin, 1, events.TypeAccepted, at(0)))
	b.apply() // the reaper has not committed yet
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
			values ($1, $2, $3, 1, 'unknown', true, 'reaper')`, b.Workspace, batch, ordinal)
		b.Must(err)
		return events.QueueOrphaned(t.Context(), tx, b.Workspace, b.provider, b.origin, batch, []int16{ordinal})
	}))
	b.apply()
	if got := b.list(`select resolution from resolutions where workspace_id = $1`); len(got) != 1 || got[0] != "sent" {
		t.Errorf("resolved as %v", got)
	}
}

func TestRanks(t *testing.T) {
	t.Parallel()
	for _, kind := range events.Types {
		if state := stateOf(kind); state != "" && rankOf(state) == 0 {
			t.Errorf("%s gives %q, which has no rank", kind, state)
		}
	}
}
