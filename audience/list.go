package audience

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience/value"
	"lemma/fence"
	"lemma/page"
	"lemma/pgerr"
)

// Audience is a saved query that returns profiles with their data. It runs for each
// use; its rows are not stored.
type Audience struct {
	ID             uuid.UUID
	WorkspaceID    uuid.UUID
	DataSourceID   uuid.UUID
	Name           string
	SQL            string
	KeyColumn      string // the column that is the profile key
	EmailColumn    string // the columns that are addresses; at least one is not empty
	PhoneColumn    string
	PhoneRegion    string   // the country of phone numbers in national form (ISO 3166-1 alpha-2); empty: none
	PushColumn     string   // tokens of devices: a text or a list
	OptedOutColumn string   // true or not 0: unsubscribed; null: not opted out; empty: there is no such column
	Columns        []Column // described by the source when the audience was saved
	Version        int      // ETag
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// Column is a column of an audience.
type Column struct {
	Name  string     `json:"name"`
	Type  value.Type `json:"type"`
	NoKey string     `json:"-"` // why it cannot be a profile key, and what can; only as the source describes it
}

// NewAudience has the fields of a new audience.
type NewAudience struct {
	ID             uuid.UUID // made by the caller, so that a repeated request creates one
	DataSourceID   uuid.UUID
	Name           string
	SQL            string
	KeyColumn      string
	EmailColumn    string
	PhoneColumn    string
	PhoneRegion    string
	PushColumn     string
	OptedOutColumn string
}

// Patch changes an audience; a nil field stays unchanged.
type Patch struct {
	DataSourceID   *uuid.UUID
	Name           *string
	SQL            *string
	KeyColumn      *string
	EmailColumn    *string // of this and the following: empty for none
	PhoneColumn    *string
	PhoneRegion    *string
	PushColumn     *string
	OptedOutColumn *string
}

func (p Patch) changesQuery() bool {
	return p.DataSourceID != nil || p.SQL != nil || p.KeyColumn != nil || p.EmailColumn != nil || p.PhoneColumn != nil ||
		p.PhoneRegion != nil || p.PushColumn != nil || p.OptedOutColumn != nil
}

// Loses reports what those who use an audience do not find after a patch: its profiles, since these have
// other keys, and addresses of channels.
func (p Patch) Loses(old Audience) (profiles bool, channels []lemma.Channel) {
	changed := p.apply(old)
	return changed.KeyColumn != old.KeyColumn,
		slices.DeleteFunc(old.Channels(), func(c lemma.Channel) bool { return changed.AddressColumn(c) != "" })
}

const audienceColumns = `workspace_id, id, data_source_id, name, sql, key_column,
	coalesce(email_column, '') as email_column, coalesce(phone_column, '') as phone_column, coalesce(phone_region, '') as phone_region,
	coalesce(push_column, '') as push_column, coalesce(opted_out_column, '') as opted_out_column,
       columns, version, created_at, updated_at`

// Create validates the audience at the source, and saves it.
func (a *Audiences) Create(ctx context.Context, ws uuid.UUID, n NewAudience) (Audience, error) {
	if err := lemma.CheckName(n.Name); err != nil {
		return Audience{}, err
	}
	report, err := a.Validate(ctx, ws, n.draft())
	if err != nil {
		return Audience{}, err
	}
	columns, err := json.Marshal(report.Columns)
	if err != nil {
		return Audience{}, fmt.Errorf("create audience: %w", err)
	}
	_, err = fence.Exec(ctx, a.pool, `
insert into audiences (workspace_id, id, data_source_id, name, sql, key_column, email_column, phone_column, phone_region, push_column,
	opted_out_column, columns)
values ($1, $2, $3, $4, $5, $6, nullif($7, ''), nullif($8, ''), nullif($9, ''), nullif($10, ''), nullif($11, ''), $12)
on conflict (workspace_id, id) do nothing`,
		ws, n.ID, n.DataSourceID, n.Name, n.SQL, n.KeyColumn, n.EmailColumn, n.PhoneColumn, n.PhoneRegion, n.PushColumn,
		n.OptedOutColumn, columns)
	if err != nil {
		return Audience{}, saving.Explain(err, "create audience")
	}
	return a.Get(ctx, ws, n.ID)
}

// Get reads one audience.
func (a *Audiences) Get(ctx context.Context, ws, id uuid.UUID) (Audience, error) {
	rows, _ := a.pool.Query(ctx, `select `+audienceColumns+` from audiences where workspace_id = $1 and id = $2`, ws, id)
	x, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Audience])
	return x, pgerr.Row(err, "audience", "read audience")
}

var list = page.Named("audiences", "", func(a Audience) uuid.UUID { return a.ID }, func(a Audience) string { return a.Name })

// List reads a page of audiences.
func (a *Audiences) List(ctx context.Context, ws uuid.UUID, q page.Query) ([]Audience, string, error) {
	return list.Read(ctx, a.pool, q, ws, `select `+audienceColumns+` from audiences where workspace_id = $1`,
		pgx.RowToStructByName[Audience])
}

// Update changes an audience. ifMatch, if not nil, must be its version. A change of
// the query is validated at the source first. check, which may be nil, can refuse the change: it is
// called before that, which may take long, and again while the audience is locked, since what begins to
// use the audience locks it too.
func (a *Audiences) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, p Patch, check func(context.Context, Audience) error,
) (Audience, error) {
	old, err := a.Get(ctx, ws, id)
	if err != nil {
		return Audience{}, err
	}
	if ifMatch == nil {
		ifMatch = &old.Version // the version that was validated is saved
	}
	if old.Version != *ifMatch {
		return Audience{}, updated(pgx.ErrNoRows, "audience")
	}
	needed := func(ctx context.Context) error {
		if check == nil {
			return nil
		}
		return check(ctx, old)
	}
	if err := needed(ctx); err != nil {
		return Audience{}, err
	}
	changed := p.apply(old)
	if err := lemma.CheckName(changed.Name); err != nil {
		return Audience{}, err
	}
	if p.changesQuery() {
		report, err := a.Validate(ctx, ws, changed.draft())
		if err != nil {
			return Audience{}, err
		}
		changed.Columns = report.Columns
	}
	return a.save(ctx, changed, needed)
}

func (p Patch) apply(x Audience) Audience {
	lemma.Set(&x.DataSourceID, p.DataSourceID)
	lemma.Set(&x.Name, p.Name)
	lemma.Set(&x.SQL, p.SQL)
	lemma.Set(&x.KeyColumn, p.KeyColumn)
	lemma.Set(&x.EmailColumn, p.EmailColumn)
	lemma.Set(&x.PhoneColumn, p.PhoneColumn)
	lemma.Set(&x.PhoneRegion, p.PhoneRegion)
	lemma.Set(&x.PushColumn, p.PushColumn)
	lemma.Set(&x.OptedOutColumn, p.OptedOutColumn)
	return x
}

func (x Audience) draft() Draft {
	return Draft{DataSourceID: x.DataSourceID, SQL: x.SQL, KeyColumn: x.KeyColumn, EmailColumn: x.EmailColumn, PhoneColumn: x.PhoneColumn,
		PhoneRegion: x.PhoneRegion, PushColumn: x.PushColumn, OptedOutColumn: x.OptedOutColumn}
}

func (n NewAudience) draft() Draft {
	return Draft{DataSourceID: n.DataSourceID, SQL: n.SQL, KeyColumn: n.KeyColumn, EmailColumn: n.EmailColumn, PhoneColumn: n.PhoneColumn,
		PhoneRegion: n.PhoneRegion, PushColumn: n.PushColumn, OptedOutColumn: n.OptedOutColumn}
}

// Channels are those that the audience has addresses for.
func (x Audience) Channels() []lemma.Channel {
	return slices.DeleteFunc([]lemma.Channel{lemma.Email, lemma.SMS, lemma.Push},
		func(c lemma.Channel) bool { return x.AddressColumn(c) == "" })
}

// AddressColumnSQL is AddressColumn in SQL, of an audience a for the channel of a template t; null if there is none.
const AddressColumnSQL = `case t.channel when 'email' then a.email_column when 'sms' then a.phone_column else a.push_column end`

// AddressColumn is the column with the addresses of a channel; empty if there is none.
func (x Audience) AddressColumn(channel lemma.Channel) string {
	switch channel {
	case lemma.SMS:
		return x.PhoneColumn
	case lemma.Push:
		return x.PushColumn
	}
	return x.EmailColumn
}

func (a *Audiences) save(ctx context.Context, x Audience, check func(context.Context) error) (saved Audience, err error) {
	columns, err := json.Marshal(x.Columns)
	if err != nil {
		return Audience{}, fmt.Errorf("update audience: %w", err)
	}
	err = fence.Transact(ctx, a.pool, func(tx pgx.Tx) error {
		locked, err := tx.Exec(ctx, `select from audiences where workspace_id = $1 and id = $2 and version = $3 for no key update`,
			x.WorkspaceID, x.ID, x.Version)
		if err != nil {
			return err
		}
		if locked.RowsAffected() == 0 {
			return pgx.ErrNoRows
		}
		if err := check(ctx); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `
update audiences
   set data_source_id = $4, name = $5, sql = $6, key_column = $7, email_column = nullif($8, ''), phone_column = nullif($9, ''),
       phone_region = nullif($10, ''), push_column = nullif($11, ''), opted_out_column = nullif($12, ''), columns = $13,
       version = version + 1, updated_at = now()
 where workspace_id = $1 and id = $2 and version = $3
returning `+audienceColumns,
			x.WorkspaceID, x.ID, x.Version, x.DataSourceID, x.Name, x.SQL, x.KeyColumn, x.EmailColumn, x.PhoneColumn, x.PhoneRegion,
			x.PushColumn, x.OptedOutColumn, columns)
		saved, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Audience])
		return err
	})
	return saved, updated(err, "audience")
}

// UsersOf returns the names of audiences on a data source: the newest ones first, at
// most limit.
func (a *Audiences) UsersOf(ctx context.Context, ws, source uuid.UUID, most int) ([]string, error) {
	rows, _ := a.pool.Query(ctx, `
		select name from audiences where workspace_id = $1 and data_source_id = $2 order by id desc limit $3`, ws, source, most)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return names, lemma.Wrap(err, "find audiences on %s", source)
}

// Delete removes an audience that nothing uses. Notifications that wait use it, since it may be read again
// before they are sent: those of direct notifications, and of a flow that was archived, whose versions use nothing
// any more. They are read after the delete, which waits for those that are being written: see package direct.
// A definition is not read as JSON here, since it may have texts that Postgres cannot hold.
func (a *Audiences) Delete(ctx context.Context, ws, id uuid.UUID) error {
	err := fence.Transact(ctx, a.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `delete from audiences where workspace_id = $1 and id = $2`, ws, id)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return lemma.Missing("audience")
		}
		var used bool
		err = tx.QueryRow(ctx, `
			with waiting as materialized (
				select distinct c.audience_id, c.flow_id from batches b
				cross join lateral (
					select c.audience_id, c.flow_id from contents c where c.workspace_id = b.workspace_id and c.id = b.content_id limit 1) c
				where b.workspace_id = $1 and b.status in ('ready', 'leased')
			)
			select exists (select from waiting where audience_id = $2) or exists (
				select from waiting w join flows f on f.workspace_id = $1 and f.id = w.flow_id and f.status = 'archived'
				cross join lateral (
					select v.definition from flow_versions v where v.workspace_id = $1 and v.flow_id = f.id and v.status <> 'draft' offset 0) v
				where strpos(v.definition, $3) > 0)`,
			ws, id, lemma.FormatID(lemma.PrefixAudience, id)).Scan(&used)
		if err == nil && used {
			err = pgerr.InUse("notifications to profiles of this audience are pending")
		}
		return err
	})
	return deletingAudience.Explain(err, "delete audience")
}

func columnNamed(columns []Column, name string) (Column, bool) {
	i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return Column{}, false
	}
	return columns[i], true
}
