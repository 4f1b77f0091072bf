// Package tracking records what recipients do after messages. It makes the pixel and the
// links of messages, serves them, finds conversions, and counts. It guarantees:
//
//   - A link leads to the URL that the message had, and to no other: the URL is signed.
//     It also leads there while the database does not answer.
//   - The links of both attempts of a notification are the same, while the tracking URL
//     of the workspace is.
//   - Each stored open and click is counted once: the transaction that takes it from the
//     queue has all its effects. A notification converts once, and is counted once as the
//     one by which its recipient unsubscribed.
//   - What machines do is kept with its reason, and is not counted as an open or click.
//   - No cookie is set. Neither addresses nor user agents of recipients are stored.
//
// Package message finds the links of a template, package links signs.
package tracking

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/clock"
	"lemma/flows/admission"
	"lemma/links"
	"lemma/queue"
	"lemma/workspaces"
)

// Where the pixel and the links are served; the token follows.
const (
	OpenPath  = "/o/"
	ClickPath = "/c/"
)

// Deps are what tracking needs.
type Deps struct {
	Pool       *pgxpool.Pool
	Links      *links.Links
	Workspaces *workspaces.Workspaces
	PublicURL  func() string // under which recipients reach this server; nil or empty: nothing is tracked
	Log        *slog.Logger
	Metrics    *Metrics
}

// Tracking makes, serves and counts links. It is an http.Handler of OpenPath and
// ClickPath.
type Tracking struct {
	Deps
	gather *admission.Gatherer[event, bool]
	clock  *clock.Clock

	mu    sync.Mutex
	bases map[uuid.UUID]base

	watch watch

	opensAndClicks, conversions, settlements *queue.Queue

	queueAt time.Time // when trigger events are read again
}

// New returns Tracking.
func New(d Deps) *Tracking {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.PublicURL == nil {
		d.PublicURL = func() string { return "" }
	}
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	t := &Tracking{Deps: d, clock: clock.New(d.Pool), bases: map[uuid.UUID]base{},
		opensAndClicks: queue.New(d.Pool, "tracking_queue", chunk),
		conversions:    queue.New(d.Pool, "conversion_queue", convertChunk),
		settlements:    queue.New(d.Pool, "settlement_queue", settledChunk)}
	t.gather = admission.NewGatherer(together, t.store)
	return t
}

// On reports whether messages can be tracked at all.
func (t *Tracking) On() bool { return t != nil && t.PublicURL() != "" }

// base is where the links of a workspace lead.
type base struct {
	url   string    // empty: under the public URL
	until time.Time // when it is read again
}

const (
	baseAge   = 10 * time.Second
	mostBases = 10_000 // in memory
)

// Base is the tracking URL of a workspace, otherwise the public URL. A change of the
// former is seen within baseAge.
func (t *Tracking) Base(ctx context.Context, ws uuid.UUID) (string, error) {
	t.mu.Lock()
	known, ok := t.bases[ws]
	t.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return cmp.Or(known.url, t.PublicURL()), nil
	}
	of, err := t.Workspaces.Get(ctx, ws)
	if err != nil {
		return "", err
	}
	fresh := base{of.TrackingURL, time.Now().Add(baseAge)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.bases) >= mostBases {
		clear(t.bases)
	}
	t.bases[ws] = fresh
	return cmp.Or(fresh.url, t.PublicURL()), nil
}
