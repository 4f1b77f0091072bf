package sender

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// listing is a carrier that can be asked for its messages.
type listing struct {
	*scripted
	mu    sync.Mutex
	asked []Message
	list  func(m *Message, since, until time.Time) ([]string, error)
}

func (l *listing) Lookup(_ context.Context, m *Message, since, until time.Time) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, *m)
	return l.list(m, since, until)
}

// listed is a sender whose carrier lists the same ids for every message.
func (b *bundle) listed(ids ...string) (*Sender, *listing) {
	l := &listing{scripted: b.carrier}
	l.list = func(*Message, time.Time, time.Time) ([]string, error) { return append([]string{}, ids...), nil }
	return b.senderOf(Kind{Name: "scripted", Capabilities: Capabilities{Lookup: true},
		Open: func(Account) (Carrier, error) { return l, nil }}), l
}

// insertFor inserts a notification of another origin.
func (b *bundle) insertFor(to string) (origin uuid.UUID) {
	b.T.Helper()
	origin = lemma.NewID()
	b.Must(pgx.BeginFunc(context.Background(), b.Pool, func(tx pgx.Tx) error {
		_, err := b.ledger.Insert(context.Background(), tx, notifications.Chunk{WorkspaceID: b.Workspace, OriginID: origin,
			ProviderID: b.provider, ContentID: b.origin, Run: 1, MaxAttempts: 2, BatchSize: 1,
			Recipients: []notifications.Recipient{{Key: keyOf(0), ProfileKey: "0", Address: to, Payload: `{"name":"N0"}`}}})
		return err
	}))
	return origin
}

// A message that the carrier has is sent, and not called again. The carrier is asked
// without a lock, for the time of the call, with what was sent.
func TestTheReaperAsksTheCarrierBeforeItRetries(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	b.carrier.then[addressOf(1)] = []Outcome{Unknown, Accepted}
	b.carrier.then[addressOf(2)] = []Outcome{Unknown, Accepted}
	s, carrier := b.listed()
	begun := time.Now()
	carrier.list = func(m *Message, since, until time.Time) ([]string, error) {
		if since.After(begun) || until.Before(time.Now()) {
			t.Errorf("asked for %v to %v", since, until)
		}
		var locked int
		err := b.Pool.QueryRow(context.Background(),
			`select count(*) from (select from batches where workspace_id = $1 for update nowait) b`, b.Workspace).Scan(&locked)
		if err != nil {
			t.Errorf("the batches are locked: %v", err)
		}
		if m.To == addressOf(1) {
			return []string{"SM1"}, nil
		}
		return nil, nil
	}
	b.work(s)
	if r := b.reap(s); r.Settled != 1 || r.Retried != 1 {
		t.Errorf("reaped %+v", r)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 3})
	if one, two := b.carrier.called(addressOf(1)), b.carrier.called(addressOf(2)); one != 1 || two != 2 {
		t.Errorf("called %d and %d times, want 1 and 2", one, two)
	}
	for _, m := range carrier.asked {
		if sent := b.carrier.sent[m.To][0]; sent.Text != m.Text || sent.Subject != m.Subject || sent.Notification != m.Notification {
			t.Errorf("asked for %+v, sent %+v", m, sent)
		}
	}
	if n := b.Count(`select count(*) from attempts where workspace_id = $1 and basis = 'evidence' and carrier_id = 'SM1'`,
		b.Workspace); n != 1 {
		t.Errorf("%d attempts have the carrier's id", n)
	}
}

// Under at_most_once the carrier is asked before a row is orphaned.
func TestTheReaperAsksTheCarrierBeforeItOrphans(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 1)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	s, _ := b.listed("SM1")
	b.work(s)
	if r := b.reap(s); r.Settled != 1 || r.Orphaned != 0 {
		t.Errorf("reaped %+v", r)
	}
	b.wantCounts(notifications.Counts{Sent: 1})
}

// A second attempt whose outcome is unknown is found too.
func TestASecondAttemptIsLookedUp(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown, Unknown}
	s, carrier := b.listed()
	b.work(s)
	b.reap(s)
	b.makeDue()
	b.work(s)
	carrier.list = func(*Message, time.Time, time.Time) ([]string, error) { return []string{"SM2"}, nil }
	if r := b.reap(s); r.Settled != 1 {
		t.Errorf("reaped %+v", r)
	}
	b.wantCounts(notifications.Counts{Sent: 1})
}

// A carrier that gives no answer proves nothing, and is not asked again in this run.
func TestACarrierThatGivesNoList(t *testing.T) {
	b := setup(t)
	b.insert(2, 1, 2)
	b.carrier.then[addressOf(0)], b.carrier.then[addressOf(1)] = []Outcome{Unknown}, []Outcome{Unknown}
	s, carrier := b.listed()
	carrier.list = func(*Message, time.Time, time.Time) ([]string, error) { return nil, errors.New("no answer") }
	b.work(s)
	if r := b.reap(s); r.Retried != 2 || len(carrier.asked) != 1 {
		t.Errorf("reaped %+v after %d questions", r, len(carrier.asked))
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 2})
}

// A message in the list that another call may explain proves nothing: that call's own
// message, or one of two calls with unknown outcomes.
func TestMessagesOfOtherCallsProveNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		other   Outcome
		listed  []string
		settled int
	}{
		{"the message of the other call", Accepted, []string{"q1"}, 0},
		{"that, and one of this call", Accepted, []string{"SM7", "q1"}, 1},
		{"two unknown calls", Unknown, []string{"SM7"}, 0},
		{"a call that was rejected", Rejected, []string{"SM7"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.insert(1, 1, 2)
			s, _ := b.listed(c.listed...)
			b.carrier.then[addressOf(0)] = []Outcome{Unknown}
			b.work(s)
			b.insertFor(addressOf(0))
			b.carrier.then[addressOf(0)] = append(b.carrier.then[addressOf(0)], c.other)
			b.work(s)
			if r := b.reap(s); r.Settled != c.settled {
				t.Errorf("reaped %+v, want %d settled", r, c.settled)
			}
		})
	}
}

// When the time of a run is over, the next one asks.
func TestTheNextRunAsks(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	s, carrier := b.listed("SM1")
	b.work(s)
	b.expireLeases()
	stale := b.batches("status = 'leased'")[0]
	over := newLookups(0)
	over.until = time.Now().Add(-time.Second)
	if asked, err := s.lookUp(context.Background(), stale, over); asked || err != nil || len(carrier.asked) != 0 {
		t.Errorf("asked: %v, %v", asked, err)
	}
	if asked, err := s.lookUp(context.Background(), refs[0], newLookups(0)); !asked || err != nil || len(carrier.asked) > 1 {
		t.Errorf("of a batch that is not stale: %v, %v", asked, err)
	}
}

// A message of another provider of the same kind, which may be the same account, proves
// nothing about a call that the carrier never received.
func TestALookupFindsTheMessageOfAnotherProvider(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown, Accepted}
	s, _ := b.listed("q1")
	b.work(s)
	origin := b.insertFor(addressOf(0))
	b.Exec(`update batches set provider_id = $2 where origin_id = $1`, origin, b.NewProvider("scripted"))
	b.work(s) // accepted as q1
	if r := b.reap(s); r.Settled != 0 {
		t.Errorf("%+v", r)
	}
}
