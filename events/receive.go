package events

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Received is a report and the provider whose carrier sent it.
type Received struct {
	ProviderID uuid.UUID
	Channel    lemma.Channel // of the provider
	Report     Report
}

// Recorded is what became of a report.
type Recorded struct {
	New     bool // it was not known before
	Matched bool // it is about a notification of the workspace; false also if it is not New
	Flood   bool // it has no id, and mostWithoutID of its type about this attempt are stored
}

// mostWithoutID is how many reports without an id are kept, of each type about one
// attempt of a notification. Requests that are stored at the same moment may add a few.
const mostWithoutID = 100

// Receive records reports, and queues their effects, in one statement. A report with a
// known id changes nothing; one without an id is kept each time, up to mostWithoutID. A
// report that names no notification of the workspace is kept without one
// (ProviderEvents!EveryEventApplied).
func Receive(ctx context.Context, db DB, workspaceID uuid.UUID, all []Received) ([]Recorded, error) {
	done := make([]Recorded, len(all))
	for i, r := range all {
		done[i].Flood = r.Report.ID == "" // unless it is stored
	}
	if len(all) == 0 {
		return done, nil
	}
	c, places := reportColumns(all)
	rows, _ := db.Query(ctx, receive, workspaceID, uuid.Nil, c.ids, c.providers, c.sourceIDs, c.origins, c.keys, c.attempts, c.types,
		c.kinds, c.codes, c.reasons, c.carrierIDs, c.details, c.addresses, c.times, c.prompt, c.nths, mostWithoutID, clockSkew, c.channels)
	var id uuid.UUID
	var matched bool
	_, err := pgx.ForEachRow(rows, []any{&id, &matched}, func() error {
		done[places[id]] = Recorded{New: true, Matched: matched}
		return nil
	})
	return done, lemma.Wrap(err, "record %d reports", len(all))
}

// receive inserts in the order of the unique index, so that two transactions with the
// same reports do not wait for each other. Watermarks are written last: the aggregate
// reads all new rows first. A watermark is exact, since no later event may come after the
// last window of a campaign. The effects of an event have the time of its receipt if it is
// dated ahead: a delivery must not end counts of soft bounces that come after it. Texts are
// stored without the address of the notification, or of the report if there is none, and not at all if its
// profile was erased.
var receive = `
	with given as (
		select e.id, e.provider_id, e.source_id, e.origin_id, e.key, e.attempt, e.type, e.kind, e.code, ` +
	withoutAddress("reason") + "," + withoutAddress("carrier_id") + "," + withoutAddress("detail") + `,
			e.address, e.channel, case when e.at < now() + interval '1 year' then e.at else now() end as at,
			e.prompt and coalesce(e.at <= now() + $20::interval, true) as prompt, n.batch_id, n.ordinal, e.nth
		from unnest($3::uuid[], $4::uuid[], $5::text[], $6::uuid[], $7::uuid[], $8::smallint[], $9::text[], $10::text[], $11::smallint[],
			$12::text[], $13::text[], $14::text[], $15::text[], $16::timestamptz[], $17::boolean[], $18::int[], $21::text[])
			as e (id, provider_id, source_id, origin_id, key, attempt, type, kind, code, reason, carrier_id, detail, address, at, prompt, nth,
				channel)
		left join lateral (
			select n.batch_id, n.ordinal, n.address from notifications n
			where n.workspace_id = $1 and n.origin_id = e.origin_id and n.key = e.key offset 0
		) n on n.batch_id is not null
	), new as (
		insert into provider_events (workspace_id, id, provider_id, source, source_event_id, origin_id, batch_id, ordinal, attempt,
			type, kind, code, reason, carrier_id, detail, occurred_at)
		select $1, e.id, e.provider_id, '` + SourceWebhook + `', e.source_id, case when e.batch_id is null then $2 else e.origin_id end,
			e.batch_id, e.ordinal, nullif(e.attempt, 0), e.type, e.kind, nullif(e.code, 0), nullif(e.reason, ''),
			nullif(e.carrier_id, ''), nullif(e.detail, ''), e.at
		from given e
		where e.nth = 0 or e.batch_id is null or e.nth <= $19 - (
			select count(*) from (
				select from provider_events p
				where p.workspace_id = $1 and p.origin_id = e.origin_id and p.batch_id = e.batch_id and p.ordinal = e.ordinal
				  and p.type = e.type and p.attempt is not distinct from nullif(e.attempt, 0)
				  and p.source_event_id = '` + unknownID + `' limit $19
			) stored
		)
		on conflict (workspace_id, origin_id, provider_id, source, source_event_id) where source_event_id <> 'unknown' do nothing
		returning id, batch_id is not null as matched
	), queued as (
		insert into event_queue (workspace_id, id, provider_id, origin_id, key, batch_id, ordinal, type, attempt, channel, address, detail,
			occurred_at)
		select $1, e.id, e.provider_id, case when n.matched then e.origin_id end, case when n.matched then e.key end, e.batch_id, e.ordinal,
			e.type, nullif(e.attempt, 0), case when e.address <> '' then e.channel end, nullif(e.address, ''),
			nullif(coalesce(nullif(e.detail, ''), e.reason), ''), least(e.at, now())
		from new n join given e on e.id = n.id
		where (n.matched or e.address <> '') and e.type <> '` + string(TypeDeferred) + `'
	), watermarks as (
		insert into provider_watermarks (workspace_id, provider_id, occurred_at, recorded_at)
		select $1, e.provider_id, max(least(e.at, now())), now() from new n join given e on e.id = n.id
		where e.prompt group by e.provider_id order by e.provider_id
		on conflict (workspace_id, provider_id) do update set occurred_at = excluded.occurred_at, recorded_at = excluded.recorded_at
		where excluded.occurred_at > provider_watermarks.occurred_at
	)
	select id, matched from new`

// withoutAddress is a text of a report as it is stored.
func withoutAddress(column string) string {
	return strings.NewReplacer("TEXT", "e."+column, "ADDRESS", "coalesce(n.address, nullif(e.address, ''))").Replace(`
		case when n.address = 'erased' then '' when strpos(lower(TEXT), lower(ADDRESS)) > 0
			then regexp_replace(TEXT, '***=' || ADDRESS, '', 'gi') else TEXT end as `) + column
}

// reportColumns are the columns of reports, as unnest takes them, and the place in all
// of each id.
type reported struct {
	ids, providers, origins, keys []uuid.UUID
	sourceIDs, types, kinds       []string
	reasons, carrierIDs, details  []string
	addresses, channels           []string
	attempts, codes               []int16
	times                         []*time.Time
	prompt                        []bool
	nths                          []int32 // of those without an id of a type and notification; otherwise 0
}

func reportColumns(all []Received) (c reported, places map[uuid.UUID]int) {
	type named struct {
		Received
		origin, key uuid.UUID
		sourceID    string
		place       int
	}
	sorted := make([]named, len(all))
	for i, r := range all {
		n := named{Received: r, sourceID: storedID(r.Report.ID), place: i}
		n.origin, n.key, _ = lemma.ParseNotificationID(r.Report.Notification)
		sorted[i] = n
	}
	slices.SortFunc(sorted, func(a, b named) int {
		return cmp.Or(bytes.Compare(a.origin[:], b.origin[:]), bytes.Compare(a.ProviderID[:], b.ProviderID[:]), cmp.Compare(a.sourceID,
			b.sourceID))
	})
	places = make(map[uuid.UUID]int, len(all))
	type kept struct {
		origin, key uuid.UUID
		of          Type
		attempt     int16
	}
	without := map[kept]int32{}
	for _, n := range sorted {
		r, id, nth := n.Report, lemma.NewID(), int32(0)
		if r.ID == "" {
			of := kept{n.origin, n.key, r.Type, attemptOf(r.Attempt)}
			without[of]++
			nth = without[of]
		}
		c.nths = append(c.nths, nth)
		places[id] = n.place
		c.ids, c.providers, c.origins, c.keys = append(c.ids, id), append(c.providers, n.ProviderID), append(c.origins, n.origin),
			append(c.keys, n.key)
		c.sourceIDs, c.types, c.kinds = append(c.sourceIDs, n.sourceID), append(c.types, string(r.Type)),
			append(c.kinds, string(r.Type.Proves()))
		c.reasons, c.carrierIDs, c.details = append(c.reasons, stored(r.Reason)), append(c.carrierIDs, stored(r.CarrierID)),
			append(c.details, stored(r.Detail))
		at, known := within(r.OccurredAt)
		c.addresses, c.channels = append(c.addresses, r.Address), append(c.channels, string(n.Channel))
		c.times, c.prompt = append(c.times, at), append(c.prompt, known && r.Type.Prompt())
		c.attempts, c.codes = append(c.attempts, attemptOf(r.Attempt)), append(c.codes, int16(min(max(r.Code, 0), math.MaxInt16)))
	}
	return c, places
}

// attemptOf is 0 for an attempt that cannot be.
func attemptOf(n int) int16 {
	if n == 1 || n == 2 {
		return int16(n)
	}
	return 0
}

// clockSkew is how far the clock of a carrier may be ahead.
const clockSkew = 5 * time.Minute

// within is a time that can be stored and read again; nil is now, by the clock of the database:
// for none, and for one that no carrier can mean. known is false of the latter, and of a time
// that is ahead by more than clockSkew, as the statement decides: the clock of the carrier is
// wrong, and such a time proves nothing about other events.
func within(t time.Time) (at *time.Time, known bool) {
	switch {
	case t.IsZero():
		return nil, true
	case t.Year() < 2000 || t.Year() > 9999:
		return nil, false
	}
	return &t, true
}
