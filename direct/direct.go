// Package direct sends one message to one recipient, when a client requests it. It
// guarantees:
//
//   - A request is accepted in one transaction: its notification, its batch and its job
//     are stored, or nothing is. Single requests that arrive together share it.
//   - Under a key one request at a time is carried out. Under at_most_once no other is
//     carried out once its notification is stored; under at_least_once none until it has
//     ended and, unless it failed for a cause that may pass, until the seal is over.
//   - A key that is repeated gets the first notification. It calls no carrier.
//
// A key is unlocked, locked or sealed. The state is derived from the row of the key and
// the status of its notification: it is not written when a message is sent, so that no
// crash can lose a seal, and no lock expires while its notification waits. See
// specs/KeyStates.md.
//
// Package notifications stores the notifications, and package sender sends them in slots
// of their own, so that they never wait behind a campaign.
package direct

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/cache"
	"lemma/clock"
	"lemma/flows/admission"
	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
	"lemma/slots"
)

// Limits of a request.
const (
	MaxItems  = 1_000               // of a bulk
	MaxKey    = 255                 // bytes of a key
	MaxData   = 64 << 10            // bytes of the data, as JSON
	MaxAhead  = 30 * 24 * time.Hour // of SendAt
	MostLock  = time.Hour           // of LockFor
	MostSeal  = 72 * time.Hour      // of SealFor
	LeastTime = time.Second         // of both
)

// together is how many single requests are stored in one transaction, at most.
const together = 200

// limitsOfPrepares are the requests that are prepared at a time: their contents are compiled
// and rendered, which takes the processors, and what they name is read, which takes
// connections to the database.
var limitsOfPrepares = slots.Limits{Process: 16, Workspace: 4}

// Deps are the dependencies of Direct.
type Deps struct {
	Pool      *pgxpool.Pool
	Ledger    *notifications.Ledger
	Templates *message.Templates
	Providers *providers.Providers
	Audiences *audience.Audiences
	Log       *slog.Logger
	Metrics   *Metrics

	PublicURL func() string // under which links lead; empty: messages that need them are refused; nil: they never are
}

// Direct accepts direct notifications. It is safe for concurrent use.
type Direct struct {
	Deps
	contents *cache.Cache[uuid.UUID, *content]
	defaults defaults
	gather   *admission.Gatherer[*request, result]
	bulks    admission.Bulks
	clock    *clock.Clock
	prepares *slots.Slots
	data     *slots.Slots // bytes: see memory

	// Hook, when set, is called at named points of a request. Only tests set it.
	Hook func(ctx context.Context, at string)
}

// New returns Direct.
func New(d Deps) *Direct {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	if d.PublicURL == nil {
		d.PublicURL = func() string { return message.SampleHost }
	}
	n := &Direct{Deps: d, clock: clock.New(d.Pool), contents: cache.New[uuid.UUID, *content](message.CacheBytes, message.CacheShare)}
	n.prepares = slots.New(limitsOfPrepares, func(limit string) error {
		whose := map[string]string{"workspace": "too many direct notifications of this workspace", "process": "too many direct notifications"}
		return &lemma.Error{Kind: lemma.Unavailable, Code: admission.CodeOverloaded,
			Message: whose[limit] + " are prepared now; try again in a moment"}
	})
	n.data = slots.New(slots.Limits{Process: dataOfProcess, Workspace: dataOfWorkspace}, nil)
	n.gather = admission.NewGatherer(together, n.storeTogether)
	return n
}

// Sent is the answer to a request.
type Sent struct {
	Notification notifications.Notification
	Filtered     bool // the key is sealed: the notification is that of the first request, and nothing was stored
	Others       int  // further addresses of the profile that could be sent to; 0 when Filtered
}

// Result is the answer to one of many requests.
type Result struct {
	Sent
	Err error // a *lemma.Error or *Locked; nothing was stored
}

// Send accepts one request.
func (d *Direct) Send(ctx context.Context, ws uuid.UUID, n Request) (_ Sent, err error) {
	defer func() { d.Metrics.refused(err) }()
	m := d.newMemory(ws)
	defer m.release()
	all, err := d.prepare(ctx, ws, []Request{n}, false, m)
	if err != nil {
		return Sent{}, err
	}
	r := all[0]
	if !r.done {
		r.result, err = d.gather.Do(ctx, ws, r)
		if err != nil {
			d.unlock(ctx, ws, all)
			return Sent{}, err
		}
	}
	d.Metrics.count(r.result)
	return r.result.Sent, r.result.Err
}

// SendAll accepts up to MaxItems requests in one transaction. An invalid one has its own
// error.
func (d *Direct) SendAll(ctx context.Context, ws uuid.UUID, ns []Request) (_ []Result, err error) {
	defer func() { d.Metrics.refused(err) }()
	place, err := d.bulks.Acquire(ctx, ws, len(ns))
	if err != nil {
		return nil, err
	}
	defer place.Leave()
	m := d.newMemory(ws)
	defer m.release()
	all, err := d.prepare(ctx, ws, ns, true, m)
	if err != nil {
		return nil, err
	}
	if err := d.storeOpen(ctx, ws, all); err != nil {
		d.unlock(ctx, ws, all)
		return nil, err
	}
	out := make([]Result, len(all))
	for i, r := range all {
		out[i] = r.result
		d.Metrics.count(r.result)
	}
	return out, nil
}

// Follow makes what is kept in memory keep to a history.
func (d *Direct) Follow(h *cache.History) { d.contents.Follow(h) }

// prepare checks requests and finds their contents and recipients. What needs an audience
// locks its key first, so that of many deliveries of a request one reads the audience.
func (d *Direct) prepare(ctx context.Context, ws uuid.UUID, ns []Request, bulk bool, m *memory) ([]*request, error) {
	all := make([]*request, len(ns))
	for i, n := range ns {
		r, err := d.prepareOne(ctx, ws, n, bulk)
		if err != nil {
			return nil, err
		}
		all[i] = r
	}
	if err := d.findAgain(ctx, ws, all); err != nil {
		return nil, err
	}
	return all, d.readAudiences(ctx, ws, all, m)
}

// prepareOne checks a request and finds its content.
func (d *Direct) prepareOne(ctx context.Context, ws uuid.UUID, n Request, bulk bool) (r *request, err error) {
	err = d.inSlot(ctx, ws, func() error {
		d.at(ctx, "preparing")
		times, err := d.defaults.of(ctx, d.Pool, ws)
		if err != nil {
			return err
		}
		r = newRequest(ws, n, times, bulk)
		err = d.complete(ctx, ws, r)
		if err != nil && lemma.KindOf(err) != lemma.Internal {
			r.fail(err)
			return nil
		}
		return err
	})
	return r, err
}

// inSlot prepares in a slot of a workspace.
func (d *Direct) inSlot(ctx context.Context, ws uuid.UUID, prepare func() error) error {
	leave, err := d.prepares.Enter(ctx, slots.Resource{Workspace: ws})
	if err != nil {
		return err
	}
	defer leave()
	return prepare()
}

func (d *Direct) at(ctx context.Context, point string) {
	if d.Hook != nil {
		d.Hook(ctx, point)
	}
}
