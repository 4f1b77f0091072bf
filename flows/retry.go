package flows

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma/audience"
)

// Who waits for a data source that failed is retried after a time that doubles.
// When the source answers again, whoever asked, all of them are retried within
// seconds; and so that somebody asks, one of them is retried now and then.

// waitingFor is whom a breaker puts off: those of all flows that read profiles
// from a source, or those who stand at one branch.
type waitingFor struct {
	ws     uuid.UUID
	source uuid.UUID
	flow   uuid.UUID // of a branch
	node   string
}

// passing are the troubles that a source is over when it answers.
var passing = []string{audience.CodeUnavailable, audience.CodeTimeout, codeSourceBusy}

const (
	retryLot   = 5_000           // people who are let go on in a second
	retryMost  = 200             // lots for one recovery
	retryEvery = 3 * time.Second // at most so often one of them tries a source that fails
)

// remember keeps whom a breaker puts off.
func (b *breakers) remember(source uuid.UUID, about waitingFor) {
	s := b.of(source)
	b.mu.Lock()
	defer b.mu.Unlock()
	s.about = about
}

// toRetry takes down which sources have recovered, and which fail and could be
// asked again: nobody has for a while.
func (b *breakers) toRetry(now time.Time) (back, try []waitingFor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.states {
		switch {
		case s.about == (waitingFor{}):
		case s.recovered:
			s.recovered = false
			back = append(back, s.about)
		case s.failures > 0 && now.After(s.closedTo) && now.Sub(s.tried) > retryEvery:
			s.tried = now
			try = append(try, s.about)
		}
	}
	return back, try
}

// fails says whether a source has failed again.
func (b *breakers) fails(about waitingFor) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.states {
		if s.about == about && s.failures > 0 {
			return true
		}
	}
	return false
}

// retrySources lets those go on whose source is back, and lets one try a source
// that is not.
func (f *Flows) retrySources(ctx context.Context) error {
	back, try := f.sources.toRetry(time.Now())
	for _, about := range try {
		if _, err := f.retry(ctx, about, 0, 1); err != nil {
			return err
		}
	}
	for _, about := range back {
		n := int64(0)
		for lot := range retryMost {
			some, err := f.retry(ctx, about, lot, retryLot)
			n += some
			if err != nil {
				return err
			}
			if some < retryLot || f.sources.fails(about) {
				break
			}
		}
		if err := f.retryPolls(ctx, about); err != nil {
			return err
		}
		if n > 0 {
			f.log.Info("data source answers again, enrollments are retried", "workspace_id", about.ws, "data_source_id", about.source, "flow_id", about.flow, "node", about.node, "enrollments", n)
		}
	}
	return nil
}

// retry makes some of those due who wait for a source for longest, spread over
// one second after so many.
func (f *Flows) retry(ctx context.Context, about waitingFor, after, most int) (int64, error) {
	spread := 1000
	if most == 1 { // it is to try at once
		spread = 1
	}
	which, args := `e.flow_id in (`+usersOf("$6")+`)`, []any{wire(about.source)}
	if about.flow != uuid.Nil {
		which, args = `e.flow_id = $6 and e.node = $7`, []any{wire(about.flow), about.node}
	}
	tag, err := f.pool.Exec(ctx, `
		update enrollments e set resume_at = now() + $3::int * interval '1 second' + abs(uuid_hash_extended(e.id, 0) % $5) * interval '1 millisecond'
		where workspace_id = $1 and id = any(array(
			select e.id from enrollments e
			where e.workspace_id = $1 and `+which+` and e.status = 'active' and e.trouble = any($2) and e.trouble is not null
			  and e.resume_at > now() + ($3::int + 3) * interval '1 second'
			order by e.resume_at limit $4 for update skip locked)) and ended_at is null`,
		append([]any{wire(about.ws), passing, after, most, spread}, args...)...)
	if err != nil {
		return 0, fmt.Errorf("retry who waits for a data source: %w", err)
	}
	return tag.RowsAffected(), nil
}

// usersOf are the flows of workspace $1 that ask a data source.
func usersOf(source string) string {
	return `
		select u.flow_id from flow_uses u left join audiences a on a.workspace_id = u.workspace_id and a.id = u.audience_id
		where u.workspace_id = $1 and ` + source + ` in (u.data_source_id, a.data_source_id)`
}

// retryPolls has the audiences of a source that could not be read polled again.
func (f *Flows) retryPolls(ctx context.Context, about waitingFor) error {
	_, err := f.pool.Exec(ctx, `
		update flow_polls set next_at = now()
		where workspace_id = $1 and failures > 0 and next_at > now() and leased_by is null and flow_id in (`+usersOf("$2")+`)`, about.ws, about.source)
	if err != nil {
		return fmt.Errorf("retry polls of a data source: %w", err)
	}
	return nil
}
