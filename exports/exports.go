// Package exports writes rows of a workspace to files in the blob store. It guarantees:
//
//   - A file is seen when its export has completed, and then it is whole.
//   - It has each row that existed when the export was created, once, as the row was when
//     it was read. Rows that are created later are left out.
//   - An export whose worker crashes is taken over, and begins a new file.
//   - It is written by any process with a store. While processes with different stores run,
//     none is created or begun: a file could be where its readers do not find it.
//   - Cancelled, failed, deleted and expired exports leave no content.
//
// Package blobs has the steps register, prepare, commit, publish and clean. Package
// format writes the rows.
package exports

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/blobs"
	"lemma/fence"
	"lemma/links"
	"lemma/page"
	"lemma/pgerr"
	"lemma/settings"
	"lemma/slots"
)

// The statuses of an export. Publishing ends by itself.
const (
	Queued     = "queued"
	Running    = "running"
	Publishing = "publishing"
	Completed  = "completed"
	Failed     = "failed"
	Cancelled  = "cancelled"
)

// Config has the settings of exports. Zero values are the defaults.
type Config struct {
	Workers   int           // exports that a process writes at the same time; 2
	Retention time.Duration // how long an export is kept after its end; 7 days
	PublicURL func() string // of links; nil or empty: links are paths
	Poll      time.Duration // how often due exports are looked up; 500 ms
	Patience  time.Duration // of Help: how long an export is due before it is begun; 30 s
	PageRows  int           // rows that one statement reads; 20,000
	Space     int64         // bytes of the files of a workspace; 50 GiB
	PageBytes int           // of the rows of a page, unless its first row or only batch has more; 8 MiB
}

func (c Config) withDefaults() Config {
	if c.Workers <= 0 {
		c.Workers = 2
	}
	if c.Retention <= 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	if c.Poll <= 0 {
		c.Poll = 500 * time.Millisecond
	}
	if c.Patience <= 0 {
		c.Patience = 30 * time.Second
	}
	if c.PageRows <= 0 {
		c.PageRows = 20_000
	}
	if c.PageBytes <= 0 {
		c.PageBytes = 8 << 20
	}
	if c.Space <= 0 {
		c.Space = 50 << 30
	}
	if c.PublicURL == nil {
		c.PublicURL = func() string { return "" }
	}
	return c
}

// Deps are what exports needs.
type Deps struct {
	Pool    *pgxpool.Pool
	Blobs   *blobs.Blobs
	Links   *links.Links
	Log     *slog.Logger
	Metrics *Metrics
}

// Exports creates and writes exports. It is safe for concurrent use.
type Exports struct {
	Deps
	cfg     Config
	lookups *slots.Slots // of requests for files

	expirePage    int // expired exports that are read together
	progressEvery time.Duration

	mu      sync.Mutex
	running map[uuid.UUID]int // exports of each workspace that this process writes
}

// New returns Exports.
func New(d Deps, c Config) *Exports {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	return &Exports{Deps: d, cfg: c.withDefaults(), expirePage: 100, progressEvery: progressEvery,
		running: map[uuid.UUID]int{}, lookups: newLookups(d.Metrics)}
}

// Export is one export.
type Export struct {
	ID           uuid.UUID
	Type         string
	Format       string
	CSVFormulas  string
	Filters      Filters
	Status       string
	StatusReason *string
	StatusDetail *string
	Attempts     int
	RowCount     int64 // that the current attempt has written
	ByteCount    int64
	CreatedAt    time.Time
	StartedAt    *time.Time
	FinishedAt   *time.Time
	ExpiresAt    *time.Time
}

// NewExport is what an export is created from.
type NewExport struct {
	ID          uuid.UUID
	Type        string
	Format      string
	CSVFormulas string // "escape" (default) or "keep"
	Filters     Filters
}

// mostOpen is how many exports of a workspace may wait or run.
const mostOpen = 100

const columns = `id, type, format, csv_formulas, filters, status, status_reason, status_detail, attempts, row_count, byte_count,
	created_at, started_at, finished_at, expires_at`

// Create queues an export. A repeated request with the same id creates it once.
func (e *Exports) Create(ctx context.Context, ws uuid.UUID, n NewExport) (made Export, err error) {
	if n.CSVFormulas == "" {
		n.CSVFormulas = "escape"
	}
	if e.Blobs.Store == nil {
		return Export{}, &lemma.Error{Kind: lemma.Conflict, Code: "no_blob_store",
			Message: "this server keeps no exports: its operator must set LEMMA_BLOBS"}
	}
	if err := e.check(ctx, ws, n); err != nil {
		return Export{}, err
	}
	filters, err := json.Marshal(n.Filters)
	if err != nil {
		return Export{}, fmt.Errorf("encode filters: %w", err)
	}
	err = fence.Transact(ctx, e.Pool, func(tx pgx.Tx) error {
		used, err := e.spaceOf(ctx, tx, ws, n.ID)
		if err != nil {
			return err
		}
		refusal := e.refusal(used)
		tag, err := tx.Exec(ctx, `
			insert into exports (workspace_id, id, type, format, csv_formulas, filters)
			select $1, $2, $3, $4, $5, $6
			where $7 and not `+storesDiffer("$8", "$9")+`
			on conflict (workspace_id, id) do nothing`, ws, n.ID, n.Type, n.Format, n.CSVFormulas, filters,
			refusal == nil, e.Blobs.At, settings.InUse)
		if err != nil {
			return fmt.Errorf("create export: %w", err)
		}
		made, err = get(ctx, tx, ws, n.ID)
		if tag.RowsAffected() == 0 && lemma.KindOf(err) == lemma.NotFound {
			var differ bool
			if err := tx.QueryRow(ctx, `select `+storesDiffer("$1", "$2"), e.Blobs.At, settings.InUse).Scan(&differ); err != nil {
				return fmt.Errorf("compare stores: %w", err)
			}
			if differ {
				return errStoresDiffer
			}
			return cmp.Or[error](refusal, errStoresDiffer) // they differed a moment ago
		}
		return fence.Changed(tag, err)
	})
	return made, err
}

// storesDiffer is true while a process with another store runs. at and inUse are the
// parameters with the store of this process and settings.InUse.
func storesDiffer(at, inUse string) string {
	return `exists (select from settings where name = 'LEMMA_BLOBS' and value <> ` + at + ` and seen_at > now() - ` + inUse + `::interval)`
}

var errStoresDiffer = &lemma.Error{Kind: lemma.Unavailable, Code: "blob_stores_differ",
	Message: "processes with different values of LEMMA_BLOBS run: its operator must set one for all"}

// Get reads an export.
func (e *Exports) Get(ctx context.Context, ws, id uuid.UUID) (Export, error) {
	return get(ctx, e.Pool, ws, id)
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func get(ctx context.Context, q querier, ws, id uuid.UUID) (Export, error) {
	rows, _ := q.Query(ctx, "select "+columns+" from exports where workspace_id = $1 and id = $2", ws, id)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Export])
	return found, pgerr.Row(err, "export", "get export")
}

var list = page.List[Export]{Name: "exports", Status: "status", Created: "created_at", Orders: map[string]page.Order[Export]{
	"created_at": page.ByID("id", func(e Export) uuid.UUID { return e.ID }),
}}

// List reads one page of exports.
func (e *Exports) List(ctx context.Context, ws uuid.UUID, q page.Query) ([]Export, string, error) {
	return list.Read(ctx, e.Pool, q, ws, "select "+columns+" from exports where workspace_id = $1", pgx.RowToStructByName[Export])
}

// Cancel ends an export that waits, runs or is being published. Its content is deleted.
func (e *Exports) Cancel(ctx context.Context, ws, id uuid.UUID) (done Export, err error) {
	err = fence.Transact(ctx, e.Pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			update exports set status = 'cancelled', finished_at = now(), expires_at = now() + $3
			where workspace_id = $1 and id = $2 and status in ('queued', 'running', 'publishing')`, ws, id, e.cfg.Retention)
		if err != nil {
			return fmt.Errorf("cancel export: %w", err)
		}
		if done, err = get(ctx, tx, ws, id); err != nil {
			return err
		}
		switch {
		case tag.RowsAffected() == 1:
			return e.Blobs.Drop(ctx, tx, blobs.Owner{Workspace: ws, ID: id})
		case done.Status == Cancelled: // a repeated request
			return fence.ErrUnchanged
		}
		return &lemma.Error{Kind: lemma.WrongStatus, Message: "the export has ended", Status: done.Status, Allowed: allowed(done.Status)}
	})
	return done, err
}

// Delete deletes an export with its content, also while it runs.
func (e *Exports) Delete(ctx context.Context, ws, id uuid.UUID) error {
	return fence.Transact(ctx, e.Pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `delete from exports where workspace_id = $1 and id = $2`, ws, id)
		if err != nil {
			return fmt.Errorf("delete export: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return lemma.Missing("export")
		}
		return e.Blobs.Drop(ctx, tx, blobs.Owner{Workspace: ws, ID: id})
	})
}
