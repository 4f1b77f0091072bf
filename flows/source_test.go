package flows

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/pgtest"
	"lemma/secrets"
)

// patient are audiences that wait a long while for their sources, and a function
// that makes another of them, with a data source of its own.
func (b *bundle) patient() (*audience.Audiences, func(ws uuid.UUID) uuid.UUID) {
	b.t.Helper()
	var role string
	b.must(b.shop.QueryRow(context.Background(), `select grantee from information_schema.role_table_grants where table_name = 'customers' and grantee like 'reader_%'`).Scan(&role))
	box, err := secrets.ParseKeys(secrets.NewKey())
	b.must(err)
	a := audience.New(b.pool, box, audience.Options{AllowPrivate: true, AllowUnix: true, LookupTimeout: time.Minute})
	b.t.Cleanup(a.Close)
	return a, func(ws uuid.UUID) uuid.UUID {
		b.t.Helper()
		source, err := a.CreateSource(context.Background(), ws, audience.NewSource{ID: lemma.NewID(), Name: uuid.NewString(), Kind: "postgres", DSN: asRole(b.shop, role)})
		b.must(err)
		x, err := a.Create(context.Background(), ws, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source.ID, Name: uuid.NewString(),
			SQL: "select id, email from customers", KeyColumn: "id", EmailColumn: "email"})
		b.must(err)
		return x.ID
	}
}

// Two sources that hang, with more questions to each than there are workers,
// and a flow that needs neither: it goes on while they hang.
func TestSourcesThatHangHoldUpNobodyElse(t *testing.T) {
	b := setup(t, 1, func(c *Config) { c.Workers, c.BackOff = 4, time.Minute })
	audiences, add := b.patient()
	b.rooms.Audiences = audiences
	b.Flows = b.another()
	for range 2 {
		b.audience = add(b.ws)
		b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"slow"}],"recurrence":{"policy":"once"},"start":"e","nodes":{"e":{"type":"exit"}}}`)
	}
	fast := b.live(`{"triggers":[{"type":"event","event":"fast"}],"recurrence":{"policy":"once"},"start":"e","nodes":{"e":{"type":"exit"}}}`)
	tx, err := b.shop.Begin(context.Background())
	b.must(err)
	_, err = tx.Exec(context.Background(), "lock table customers in access exclusive mode")
	b.must(err)
	for i := range 40 {
		b.tell(fmt.Sprint("p", i), "slow")
		b.tell(fmt.Sprint("p", i), "fast")
	}
	b.run(b.pool, `update flow_turns set worked_at = now() where flow_id = $1`, fast) // everybody else's turns come before
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Loop(ctx) }()
	for late := time.Now().Add(10 * time.Second); b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'active'`, fast) > 0; {
		if time.Now().After(late) {
			t.Error("a flow that needs no source waits for those that hang")
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	hanging := 0
	for late := time.Now().Add(20 * time.Second); hanging < 2 && time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		b.must(b.shop.QueryRow(context.Background(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&hanging))
	}
	if hanging != 2 {
		t.Errorf("%d questions hang", hanging)
	}
	stop()
	b.must(tx.Rollback(context.Background()))
	<-ended
}

// asker asks sources of which it knows how long they take and what they answer,
// in a time of its own.
type asker struct {
	*Flows
	t *testing.T
}

func (a asker) wants(source uuid.UUID, takes time.Duration, answer error, code string, within time.Duration) {
	a.t.Helper()
	begun := time.Now()
	err := a.ask(context.Background(), source, func() error { time.Sleep(takes); return answer })
	got := ""
	if err != nil {
		got = troubleOf(err)
	}
	if d := time.Since(begun); got != code || d != within {
		a.t.Errorf("%q after %s, not %q after %s", got, d, code, within)
	}
}

// hang asks and is not answered until the time is over.
func (a asker) hang(source uuid.UUID, d time.Duration) {
	go func() {
		_ = a.ask(context.Background(), source, func() error { time.Sleep(d); return audienceGone })
	}()
	synctest.Wait()
}

var audienceGone = &lemma.Error{Kind: lemma.Unavailable, Code: audience.CodeUnavailable}

func TestASlowSourceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, slow, other := asker{New(Rooms{}, Config{Workers: 4}), t}, lemma.NewID(), lemma.NewID()
		a.wants(slow, 9*time.Second, nil, "", 9*time.Second) // its answer is used
		a.wants(slow, 0, nil, "source_unavailable", 0)
		a.wants(other, 0, nil, "", 0)
		time.Sleep(shutFor)
		a.wants(slow, 9*time.Second, nil, "", 9*time.Second)
		time.Sleep(shutFor)
		a.wants(slow, 0, nil, "source_unavailable", 0) // for longer this time
		time.Sleep(shutFor)
		a.wants(slow, time.Second, nil, "", time.Second) // it has recovered
		a.wants(slow, 0, nil, "", 0)
		for range 10 {
			a.wants(slow, 3*time.Second, nil, "", 3*time.Second)
			time.Sleep(shutSlow * 3 * time.Second) // for no longer than that, however often
		}
		a.wants(slow, 0, audienceGone, audience.CodeUnavailable, 0) // at once, so that it costs little to ask
		time.Sleep(shutFast - 1)
		a.wants(slow, 0, nil, "source_unavailable", 0)
		time.Sleep(time.Nanosecond)
		a.wants(slow, 3*time.Second, audienceGone, audience.CodeUnavailable, 3*time.Second)
		time.Sleep(shutMost - 1)
		a.wants(slow, 0, nil, "source_unavailable", 0)
		time.Sleep(time.Nanosecond)
		a.wants(slow, 0, nil, "", 0)
	})
}

func TestQuestionsAreHalfOfTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, one, two, three := asker{New(Rooms{}, Config{Workers: 4}), t}, lemma.NewID(), lemma.NewID(), lemma.NewID()
		a.hang(one, 10*time.Second)
		a.hang(two, 10*time.Second)
		a.wants(three, 0, nil, "source_busy", askPatience) // it is healthy, and has waited
		a.wants(three, 0, nil, "source_busy", 0)           // one has found out for all
		a.wants(lemma.NewID(), 0, nil, "source_busy", 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.wants(three, 0, nil, "", 0)

		time.Sleep(shutFor)
		a.hang(one, 10*time.Second) // as one that has failed
		a.wants(two, 0, nil, "source_busy", 0)
		a.wants(three, time.Second, nil, "", time.Second) // those in trouble leave a place
		a.hang(three, 500*time.Millisecond)
		a.wants(lemma.NewID(), 0, nil, "", 500*time.Millisecond) // among the healthy one waits
		time.Sleep(10 * time.Second)                             // until nobody hangs
	})
}

func TestAHungSourceCostsOneWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, hung := asker{New(Rooms{}, Config{Workers: 40}), t}, lemma.NewID()
		a.hang(hung, 10*time.Second)
		a.hang(hung, 10*time.Second)
		a.wants(hung, 0, nil, "source_busy", askPatience)
		a.wants(hung, 0, nil, "source_busy", 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.wants(hung, 0, nil, "source_unavailable", 0)
	})
}

// One person whose row is too large waits alone; everybody else of the lot goes on.
func TestARowThatIsTooLargeKeepsNobodyElse(t *testing.T) {
	b := setup(t, 50, func(c *Config) { c.BackOff = time.Hour; c.MaxBackOff = time.Hour })
	b.run(b.shop, `update customers set name = repeat('x', 2000000) where id = 'c7'`)
	flow := b.live(welcome)
	b.allTell(50, "signed_up")
	b.settleDown()
	b.onlyOneWaits(flow, "c7", audience.CodeLimit, "wait", 49)
}

// The same with a query that cannot compute with what one person has.
func TestAQueryThatFailsForOnePersonKeepsNobodyElse(t *testing.T) {
	b := setup(t, 50, func(c *Config) { c.BackOff = time.Hour; c.MaxBackOff = time.Hour })
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"b","nodes":{
		"b":{"type":"branch","cases":[{"sql":"select profile_key from people where 1 / (case profile_key when 'c7' then 0 else 1 end) = 1","next":"w"}],"else":"no"},
		"w":{"type":"delay","for":"P1D","next":"no"},"no":{"type":"exit"}}}`)
	b.allTell(50, "go")
	b.settleDown()
	b.onlyOneWaits(flow, "c7", audience.CodeFailed, "w", 49)
}

func (b *bundle) allTell(n int, event string) {
	b.t.Helper()
	var all []Event
	for i := range n {
		all = append(all, Event{ProfileKey: fmt.Sprint("c", i+1), Name: event})
	}
	_, err := b.RecordAll(context.Background(), b.ws, all)
	b.must(err)
}

func (b *bundle) onlyOneWaits(flow uuid.UUID, profile, trouble, node string, others int) {
	b.t.Helper()
	if e := b.enrollment(flow, profile); e.Trouble != trouble {
		b.t.Errorf("%s is kept by %q", profile, e.Trouble)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and trouble is null and node = $3`, flow, node); n != others {
		b.t.Errorf("%d have gone on", n)
	}
}

// How many questions it takes to find those about whom there is no answer.
func TestHalving(t *testing.T) {
	t.Parallel()
	lot := make([]*traveller, 1000)
	for i := range lot {
		lot[i] = &traveller{key: fmt.Sprint(i)}
	}
	tooLarge, fails := &lemma.Error{Kind: lemma.TooLarge, Code: audience.CodeLimit}, &lemma.Error{Kind: lemma.Invalid, Code: audience.CodeChanged}
	has := func(who []*traveller, keys ...int) bool {
		for _, t := range who {
			for _, k := range keys {
				if t == lot[k] {
					return true
				}
			}
		}
		return false
	}
	for name, c := range map[string]struct {
		says       func(who []*traveller, nth int) error
		asked, off int // at most: questions, and who are put off
	}{
		"nobody":     {func([]*traveller, int) error { return nil }, 1, 0},
		"one":        {func(who []*traveller, _ int) error { return when(has(who, 7), tooLarge) }, 21, 1},
		"two":        {func(who []*traveller, _ int) error { return when(has(who, 7, 990), fails) }, 39, 2},
		"all":        {func([]*traveller, int) error { return fails }, halvedBlind, 1000},
		"together":   {func(who []*traveller, _ int) error { return when(len(who) > 63, tooLarge) }, 31, 0},
		"the source": {func([]*traveller, int) error { return &lemma.Error{Kind: lemma.Invalid, Code: audience.CodeRefused} }, 1, 1000},
		"down":       {func([]*traveller, int) error { return audienceGone }, 1, 1000},
		"ourselves":  {func([]*traveller, int) error { return errors.New("our own database") }, 1, 1000},
		"down later": {func(who []*traveller, nth int) error {
			if nth > 3 {
				return audienceGone
			}
			return when(has(who, 7), tooLarge)
		}, 4, 500},
	} {
		asked, answered, off := 0, 0, 0
		left, err := halve(lot, func(who []*traveller) error {
			asked++
			err := c.says(who, asked)
			if err == nil {
				answered += len(who)
			}
			return err
		})
		for _, u := range left {
			off += len(u.who)
		}
		if asked > c.asked || off != c.off || answered+off != len(lot) || (err != nil) != (off > 0) {
			t.Errorf("%s: %d questions, %d answered, %d put off, %v", name, asked, answered, off, err)
		}
	}
}

// However many are at fault, a lot brings others on, and in the end all of them:
// who is left comes again in another order.
func TestHalvingBringsOthersOn(t *testing.T) {
	t.Parallel()
	for _, kind := range []lemma.Kind{lemma.Invalid, lemma.TooLarge} {
		for _, c := range []struct{ percent, lots int }{{1, 1}, {3, 4}, {5, 7}, {10, 20}, {30, 100}} {
			deal := rand.New(rand.NewPCG(1, uint64(c.percent)))
			atFault, good := map[*traveller]bool{}, 0
			waiting := make([]*traveller, 1000)
			for i := range waiting {
				waiting[i] = &traveller{}
				if atFault[waiting[i]] = deal.IntN(100) < c.percent; !atFault[waiting[i]] {
					good++
				}
			}
			lots := 0
			for ; good > 0 && lots < 1000; lots++ { // the share of those at fault grows
				deal.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
				before := good
				left, _ := halve(waiting, func(some []*traveller) error {
					if slices.ContainsFunc(some, func(t *traveller) bool { return atFault[t] }) {
						return &lemma.Error{Kind: kind}
					}
					good -= len(some)
					return nil
				})
				if good == before && lots == 0 {
					t.Errorf("%s, %d %% at fault: nobody of the first lot comes on", kind, c.percent)
				}
				waiting = nil
				for _, u := range left {
					waiting = append(waiting, u.who...)
				}
			}
			if lots > c.lots {
				t.Errorf("%s, %d %% at fault: it takes %d lots, not %d", kind, c.percent, lots, c.lots)
			}
		}
	}
}

func when(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

// A node looks at one audience of a workspace at a time, and at eight in all.
func TestPollsOfManyWorkspaces(t *testing.T) {
	b := setup(t, 1)
	audiences, add := b.patient()
	b.rooms.Audiences = audiences
	b.Flows = b.another()
	own := b.ws
	for range pollAtOnce + 1 {
		b.ws = pgtest.Workspace(t, b.pool)
		b.audience = add(b.ws)
		b.live(looked("once", ""))
		b.live(looked("once", ""))
	}
	b.ws = own
	at, leave := make(chan struct{}, 99), make(chan struct{})
	b.hook = func(stage string) {
		if stage == "poll: chunk" {
			at <- struct{}{}
			<-leave
		}
	}
	b.must(b.pollDue(context.Background()))
	for range pollAtOnce {
		select {
		case <-at:
		case <-time.After(5 * time.Second):
		}
	}
	var polls, workspaces int
	b.must(b.pool.QueryRow(context.Background(), `select count(*), count(distinct workspace_id) from flow_polls where leased_by is not null`).Scan(&polls, &workspaces))
	if polls != pollAtOnce || workspaces != pollAtOnce {
		t.Errorf("%d polls of %d workspaces", polls, workspaces)
	}
	close(leave)
	b.polls.running.Wait()
	for range 3 {
		b.must(b.pollDue(context.Background()))
		b.polls.running.Wait()
	}
	b.must(b.pool.QueryRow(context.Background(), `select count(*) from flow_polls where last_at is not null`).Scan(&polls))
	if polls != 2*(pollAtOnce+1) {
		t.Errorf("%d were looked at in the end", polls)
	}
}
