package sender

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/mail"
	"lemma/notifications"
)

// Recipients that have waited for long (a pause, a slow rate, a provider that
// was gone) may have unsubscribed meanwhile. Before a batch is called whose rows
// were read longer than Config.RecheckAfter ago, their audience is asked about them again,
// outside of any transaction. While it cannot be asked, nobody of the batch is
// called, and nobody is lost: the batch is due again later.

// Standing is one row that an audience has of a profile now.
type Standing struct {
	Address  string // as the source has it
	OptedOut bool
}

// Recheck asks the audience of an origin about profiles, and answers their rows
// by profile key. A profile without rows has left the audience. known is false
// when the origin has no audience.
type Recheck func(ctx context.Context, workspaceID, origin, content uuid.UUID, profiles []string) (now map[string][]Standing, known bool, err error)

// recheck ends the rows of a claim that are not to be written to any more.
// With a wait nothing is known about them: the batch is to be given back.
func (s *Sender) recheck(ctx context.Context, c *claim) (gone []outcome, wait time.Duration, err error) {
	if s.again == nil || c.age < s.cfg.RecheckAfter || len(c.rows) == 0 || s.rechecks.fresh(c.BatchID, s.cfg.RecheckAfter) {
		return nil, 0, nil
	}
	profiles, err := s.profilesOf(ctx, c)
	if err != nil {
		return nil, s.cfg.DeferFor / 6, err
	}
	now, known, wait, err := s.askAgain(ctx, c, profiles)
	if wait > 0 || err != nil || !known {
		return nil, wait, err
	}
	left := make([]row, 0, len(c.rows))
	for i, r := range c.rows {
		reason := standsFor(r.Address, now[profiles[i]])
		s.metrics.rechecked(reason)
		if reason == "" {
			left = append(left, r)
			continue
		}
		gone = append(gone, outcome{ordinal: r.Ordinal, kind: skipped, basis: "gate", reason: reason,
			detail: fmt.Sprintf("the audience was read again %s after it was read for the notification", c.age.Round(time.Second)), at: time.Now()})
	}
	if len(gone) == 0 {
		s.rechecks.note(c.BatchID, s.cfg.RecheckAfter)
	}
	c.rows = left
	return gone, 0, nil
}

// skipOptedOut ends the rows of a claim whose profile or address a later run of
// the fan-out has found opted out.
func (s *Sender) skipOptedOut(ctx context.Context, c *claim) (gone []outcome, err error) {
	if !c.optOuts || len(c.rows) == 0 {
		return nil, nil
	}
	keys := make([]uuid.UUID, len(c.rows))
	for i, r := range c.rows {
		keys[i] = r.Key
	}
	rows, err := s.pool.Query(ctx, `
		select r.i::int - 1 from unnest($3::uuid[]) with ordinality as r (key, i)
		cross join lateral (select from opt_outs o where o.workspace_id = $1 and o.origin_id = $2 and o.id = r.key limit 1) o`,
		c.WorkspaceID, c.OriginID, keys)
	if err != nil {
		return nil, fmt.Errorf("read opt-outs of batch %s: %w", c.BatchID, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("read opt-outs of batch %s: %w", c.BatchID, err)
	}
	for _, i := range found {
		gone = append(gone, outcome{ordinal: c.rows[i].Ordinal, kind: skipped, basis: "gate", reason: notifications.UnsubscribedSince,
			detail: "a later run of the fan-out found the opt-out", at: time.Now()})
	}
	c.rows = slices.DeleteFunc(c.rows, func(r row) bool {
		return slices.ContainsFunc(gone, func(o outcome) bool { return o.ordinal == r.Ordinal })
	})
	return gone, nil
}

// standsFor answers why an address is not to be written to, going by the rows
// that the audience has of its profile now; empty: it may be. An opt-out in any
// of them is one of the profile.
func standsFor(address string, now []Standing) string {
	if slices.ContainsFunc(now, func(n Standing) bool { return n.OptedOut }) {
		return notifications.UnsubscribedSince
	}
	reason := notifications.LeftAudience
	ours, _ := mail.ParseAddress(address)
	for _, n := range now {
		theirs, ok := mail.ParseAddress(n.Address)
		same := ok && theirs.Canonical == ours.Canonical
		switch {
		case same:
			reason = ""
		case reason != "":
			reason = notifications.AddressChanged
		}
	}
	return reason
}

// profilesOf reads the profile keys of a claim's rows, in their order.
func (s *Sender) profilesOf(ctx context.Context, c *claim) ([]string, error) {
	ordinals := make([]int16, len(c.rows))
	for i, r := range c.rows {
		ordinals[i] = r.Ordinal
	}
	rows, err := s.pool.Query(ctx, `
		select n.profile_key from notifications n
		where n.workspace_id = $1 and n.origin_id = $2 and n.batch_id = $3 and n.ordinal = any($4) order by n.ordinal`,
		c.WorkspaceID, c.OriginID, c.root, ordinals)
	if err != nil {
		return nil, fmt.Errorf("read profiles of batch %s: %w", c.BatchID, err)
	}
	profiles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(profiles) != len(ordinals) {
		err = fmt.Errorf("%d of %d rows found", len(profiles), len(ordinals))
	}
	if err != nil {
		return nil, fmt.Errorf("read profiles of batch %s: %w", c.BatchID, err)
	}
	return profiles, nil
}

// askAgain puts the question, if the origin has a place for it. It may last
// until the claim could not make a call any more.
func (s *Sender) askAgain(ctx context.Context, c *claim, profiles []string) (now map[string][]Standing, known bool, wait time.Duration, err error) {
	a := s.rechecks.of(c.OriginID)
	defer s.rechecks.left(c.OriginID, a)
	if wait := a.enter(); wait > 0 {
		c.words = "waits to be read again from its audience"
		return nil, false, wait, nil
	}
	ctx, cancel := context.WithDeadline(ctx, c.until.Add(-s.cfg.CallTimeout))
	defer cancel()
	defer s.whenDraining(ctx, cancel)()
	now, known, err = s.again(ctx, c.WorkspaceID, c.OriginID, c.contentID, profiles)
	wait = a.leave(err)
	if err == nil {
		return now, known, 0, nil
	}
	s.metrics.recheckFailed()
	c.words = "cannot be read again from its audience: " + lemma.Public(err)
	s.log.Warn("audience not read again, the batch waits", "batch_id", c.BatchID, "origin_id", c.OriginID, "rows", len(profiles), "wait", wait, "error", err)
	if lemma.KindOf(err) != lemma.Internal || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = nil // the source's, which may be back later
	}
	return nil, false, wait, err
}

// whenDraining ends a question early when this node shuts down.
func (s *Sender) whenDraining(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-s.draining:
			cancel()
		case <-over:
		case <-ctx.Done():
		}
	}()
	return func() { close(over) }
}

// rechecks know which batches were checked of late, and keep a source that
// fails or hangs from holding all senders.
type rechecks struct {
	mu      sync.Mutex
	checked map[uuid.UUID]time.Time // batch -> when nothing was found to end
	asking  map[uuid.UUID]*asking   // by origin
}

const (
	askAtOnce    = 4                      // questions of one origin at a time
	askPatience  = 100 * time.Millisecond // how long another one waits for a place
	askAfter     = 2 * time.Second        // and then, give or take a half
	firstSilence = 5 * time.Second        // after a failure, doubled for each: nobody asks
	mostSilence  = time.Minute
	mostChecked  = 10_000
)

func (r *rechecks) fresh(batch uuid.UUID, bound time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.checked[batch]
	return ok && time.Since(at) < bound
}

func (r *rechecks) note(batch uuid.UUID, bound time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checked == nil {
		r.checked = map[uuid.UUID]time.Time{}
	}
	if len(r.checked) >= mostChecked {
		for id, at := range r.checked {
			if time.Since(at) >= bound {
				delete(r.checked, id)
			}
		}
	}
	if len(r.checked) < mostChecked { // a batch that is not noted is checked once more
		r.checked[batch] = time.Now()
	}
}

// asking are the questions about one origin.
type asking struct {
	places chan struct{}

	mu       sync.Mutex // guards what follows
	failures int        // in a row
	closedTo time.Time

	users int // guarded by rechecks
}

func (r *rechecks) of(origin uuid.UUID) *asking {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking == nil {
		r.asking = map[uuid.UUID]*asking{}
	}
	a := r.asking[origin]
	if a == nil {
		a = &asking{places: make(chan struct{}, askAtOnce)}
		r.asking[origin] = a
	}
	a.users++
	return a
}

// left forgets an origin that nobody asks about and that did not fail.
func (r *rechecks) left(origin uuid.UUID, a *asking) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.users--; a.users == 0 && a.quiet() == 0 {
		delete(r.asking, origin)
	}
}

// quiet is for how long nobody asks.
func (a *asking) quiet() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, time.Until(a.closedTo))
}

// enter takes a place, or answers when to come again.
func (a *asking) enter() (wait time.Duration) {
	if wait := a.quiet(); wait > 0 {
		return wait + jitter(askAfter)
	}
	patience := time.NewTimer(askPatience)
	defer patience.Stop()
	select {
	case a.places <- struct{}{}:
		return 0
	case <-patience.C:
		return jitter(askAfter)
	}
}

// leave gives the place back, and answers how long nobody asks after a failure.
func (a *asking) leave(err error) time.Duration {
	<-a.places
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.failures, a.closedTo = 0, time.Time{}
		return 0
	}
	wait := min(firstSilence<<min(a.failures, 10), mostSilence)
	if now := time.Now(); now.After(a.closedTo) { // several that failed together are one failure
		a.failures++
		a.closedTo = now.Add(wait)
	}
	return wait + jitter(askAfter)
}

func jitter(d time.Duration) time.Duration { return d/2 + time.Duration(rand.Int64N(int64(d))) }
