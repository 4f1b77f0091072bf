package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/events"
	"lemma/message"
	"lemma/notifications"
)

// Lookup is a carrier with Capabilities.Lookup.
type Lookup interface {
	// Lookup returns the carrier's ids of the messages that it accepted between two times
	// with the recipient, text and sender of a message. Not to find a message proves
	// nothing, since a carrier's list may be late.
	Lookup(ctx context.Context, m *Message, since, until time.Time) ([]string, error)
}

const (
	lookupsPerRun   = time.Minute      // for all batches of one run of the reaper; the others are decided by the next run
	lookupsPerBatch = 20 * time.Second // what is not answered by then proves nothing
	lookupsAtOnce   = 8
	lookupSkew      = time.Minute // by which a carrier's clock may differ
)

// lookups are those of one run of the reaper.
type lookups struct {
	until  time.Time
	ahead  time.Duration      // by which the clock of the database was set ahead
	silent map[uuid.UUID]bool // providers that gave no answer: they are not asked again
}

func newLookups(ahead time.Duration) *lookups {
	return &lookups{until: time.Now().Add(lookupsPerRun), ahead: ahead, silent: map[uuid.UUID]bool{}}
}

// unknownRows are the rows of a stale batch that the carrier is asked about.
type unknownRows struct {
	claim
	since map[int16]time.Time // the opening of the first window that contained the row
	until time.Time           // by the database's clock; all calls have ended
}

// lookUp asks the carrier of a stale batch which of its messages it has accepted, and
// stores what is found as evidence, before the reaper decides. It holds no lock and no
// transaction, and decides nothing. asked is false if the time of the run is over: the
// next run asks. If the carrier cannot be asked, nothing is proven.
func (s *Sender) lookUp(ctx context.Context, ref notifications.Ref, run *lookups) (asked bool, err error) {
	d, err := s.unknownRows(ctx, ref, run.ahead)
	if err != nil || d == nil || run.silent[d.providerID] {
		return err == nil, err
	}
	if time.Now().After(run.until) {
		return false, nil
	}
	carrier, content, err := s.prepare(ctx, &d.claim)
	list, ok := carrier.(Lookup)
	if err != nil || !ok {
		s.log.Warn("a carrier is not asked for its messages", "batch_id", ref.BatchID, "error", err)
		return true, nil
	}
	s.at(ctx, "asking", ref)
	found, answered := s.ask(ctx, d, list, content)
	run.silent[d.providerID] = !answered
	if err := s.dropOthers(ctx, d, found); err != nil {
		return false, err
	}
	return true, s.recordFound(ctx, d, found)
}

// unknownRows reads the rows of a stale batch that may have been called and have no
// evidence. It is nil if there are none, or the carrier cannot be asked.
func (s *Sender) unknownRows(ctx context.Context, ref notifications.Ref, ahead time.Duration) (*unknownRows, error) {
	d := &unknownRows{claim: claim{Ref: ref}}
	err := s.pool.QueryRow(ctx, `
		select b.root_id, b.provider_id, b.content_id, b.attempt, p.kind, p.version, now()
		from batches b join providers p on p.workspace_id = b.workspace_id and p.id = b.provider_id
		where b.workspace_id = $1 and b.origin_id = $2 and b.id = $3 and b.status = 'leased'
		  and b.lease_until < now() - $4::interval`, ref.WorkspaceID, ref.OriginID, ref.BatchID,
		ahead).Scan(&d.root, &d.providerID, &d.contentID, &d.attempt, &d.kind, &d.version, &d.until)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !s.kinds[d.kind].Capabilities.Lookup {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read batch %s: %w", ref.BatchID, err)
	}
	called, _, err := partition(ctx, s.pool, ref, d.root)
	if err != nil {
		return nil, err
	}
	proven, err := events.Proofs(ctx, s.pool, ref.WorkspaceID, ref.OriginID, d.root, called)
	if err != nil {
		return nil, err
	}
	called = slices.DeleteFunc(called, func(o int16) bool { return proven[o].Of(d.attempt) != nil })
	if len(called) == 0 {
		return nil, nil
	}
	return d, s.readUnknownRows(ctx, d, called)
}

func (s *Sender) readUnknownRows(ctx context.Context, d *unknownRows, ordinals []int16) error {
	rows, _ := s.pool.Query(ctx, `
		select n.ordinal, n.key, n.address, coalesce(n.payload, '{}'), w.at
		from notifications n
		cross join lateral (
			select min(w.at) as at from batches b
			join batch_log w on w.workspace_id = b.workspace_id and w.batch_id = b.id and w.event = 'window'
				and n.ordinal between w.first and w.last
			where b.workspace_id = $1 and b.origin_id = $2 and (b.id = $3 or b.root_id = $3 and b.id <> b.root_id)) w
		where n.workspace_id = $1 and n.origin_id = $2 and n.batch_id = $3 and n.ordinal = any($4) and w.at is not null
		order by n.ordinal`, d.WorkspaceID, d.OriginID, d.root, ordinals)
	d.since = map[int16]time.Time{}
	var r row
	var since time.Time
	_, err := pgx.ForEachRow(rows, []any{&r.Ordinal, &r.Key, &r.Address, &r.Payload, &since}, func() error {
		d.rows, d.since[r.Ordinal] = append(d.rows, r), since
		return nil
	})
	return lemma.Wrap(err, "read rows of batch %s", d.BatchID)
}

// ask returns the carrier's ids of messages by ordinal. A row is left out if there are
// none, or the carrier gave no answer.
func (s *Sender) ask(ctx context.Context, d *unknownRows, list Lookup, content *content) (found map[int16][]string, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupsPerBatch)
	defer cancel()
	found, answered = map[int16][]string{}, true
	var mu sync.Mutex
	var all sync.WaitGroup
	free := make(chan struct{}, lookupsAtOnce)
	for _, r := range d.rows {
		text, _, err := content.renderRow(d.OriginID, r, "", message.MaxWait)
		if err != nil {
			continue
		}
		m := &Message{Notification: lemma.FormatNotificationID(d.OriginID, r.Key), Attempt: int(d.attempt), To: r.Address,
			Subject: text.Subject, HTML: text.HTML, Text: text.Text, Link: text.Link, Data: text.Data}
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			ids, err := list.Lookup(ctx, m, d.since[r.Ordinal].Add(-lookupSkew), d.until.Add(lookupSkew))
			mu.Lock()
			defer mu.Unlock()
			if err != nil && answered {
				answered = false
				s.log.Warn("a carrier gave no list of its messages", "provider_id", d.providerID, "error", err)
				cancel()
			} else if err == nil && len(ids) > 0 {
				found[r.Ordinal] = ids
			}
		})
	}
	all.Wait()
	return found, answered
}

// otherCalls are calls to the same addresses that may explain a message of the carrier:
// its id, or no id for a call whose outcome is unknown. Several providers of a workspace
// may be one account, so that the calls of all providers of the same kind count.
const otherCalls = `
	select distinct f.ordinal, case a.outcome when 'accepted' then coalesce(a.carrier_id, '') else '' end
	from batches b
	cross join lateral (
		select n.batch_id, n.ordinal, n.address from notifications n
		where n.workspace_id = $1 and n.origin_id = b.origin_id and n.batch_id = b.root_id and n.address = any($5) offset 0) n
	join unnest($4::smallint[], $5::text[]) as f (ordinal, address)
		on f.address = n.address and not (n.batch_id = $6 and n.ordinal = f.ordinal)
	left join attempts a on a.workspace_id = $1 and a.batch_id = n.batch_id and a.ordinal = n.ordinal and a.attempt = b.attempt
	where b.workspace_id = $1 and b.provider_id = any(array(
		select p.id from providers p join providers o on o.workspace_id = p.workspace_id and o.kind = p.kind
		where o.workspace_id = $1 and o.id = $2))
	  and (b.status = 'leased' or b.finished_at >= $3 or b.status = 'ready' and b.open is not null)
	  and (a.outcome in ('accepted', 'unknown') and a.at >= $3 or a.outcome is null and b.status = 'leased')`

// dropOthers removes what calls for other notifications to the same address may explain:
// the carrier's ids of accepted ones, and every id if one has an unknown outcome. It reads
// after the carrier was asked: a call whose message was found has an outcome then, or its
// batch is leased.
func (s *Sender) dropOthers(ctx context.Context, d *unknownRows, found map[int16][]string) error {
	var ordinals []int16
	var addresses []string
	since := d.until
	for _, r := range d.rows {
		if len(found[r.Ordinal]) > 0 {
			ordinals, addresses = append(ordinals, r.Ordinal), append(addresses, r.Address)
			if d.since[r.Ordinal].Before(since) {
				since = d.since[r.Ordinal]
			}
		}
	}
	if len(ordinals) == 0 {
		return nil
	}
	rows, _ := s.pool.Query(ctx, otherCalls, d.WorkspaceID, d.providerID, since.Add(-lookupSkew), ordinals, addresses, d.root)
	var ordinal int16
	var id string
	_, err := pgx.ForEachRow(rows, []any{&ordinal, &id}, func() error {
		found[ordinal] = slices.DeleteFunc(found[ordinal], func(one string) bool { return id == "" || one == id })
		return nil
	})
	return lemma.Wrap(err, "read other calls to the addresses of batch %s", d.BatchID)
}

// recordFound stores an acceptance for each row with a message of its own.
func (s *Sender) recordFound(ctx context.Context, d *unknownRows, found map[int16][]string) error {
	var known []events.Event
	for ordinal, ids := range found {
		if len(ids) == 0 {
			continue
		}
		known = append(known, events.Event{ProviderID: d.providerID, Source: events.SourceLookup,
			SourceID: fmt.Sprintf("%s/%d/%d", d.root, ordinal, d.attempt), OriginID: d.OriginID,
			BatchID: d.root, Ordinal: ordinal, Attempt: d.attempt, Kind: events.Accepted, CarrierID: clip(ids[0]), OccurredAt: d.until})
	}
	_, err := events.Record(ctx, s.pool, d.WorkspaceID, known)
	return err
}
