package secrets

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store is a column of sealed texts, with the statements of the package that owns
// the table. They go over all workspaces: the keys are the operator's. Every
// package that seals has one.
type Store struct {
	Table  string // name for reports and errors
	Prefix string // of the rows' ids in the API

	// Place is the additional data of a row.
	Place func(workspace, id uuid.UUID) []string

	Pool *pgxpool.Pool
	// Select reads workspace_id, id and the sealed text of at most $3 rows that have
	// one, after workspace $1 and id $2, in the order of both.
	Select string
	// Update writes the new text of each row whose sealed text is unchanged: $1 to $4
	// are the arrays of workspaces, ids, old and new texts. It leaves version and
	// updated_at unchanged: the secret is the same, and so is the ETag.
	Update string
}

// page reads at most limit rows after one.
func (s Store) page(ctx context.Context, after Sealed, limit int) ([]Sealed, error) {
	rows, _ := s.Pool.Query(ctx, s.Select, after.WorkspaceID, after.ID, limit)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Sealed])
}

// replace writes the new text of each row, and returns how many rows were written.
func (s Store) replace(ctx context.Context, rows []replacement) (int64, error) {
	var workspaces, ids []uuid.UUID
	var old, fresh [][]byte
	for _, r := range rows {
		workspaces, ids = append(workspaces, r.WorkspaceID), append(ids, r.ID)
		old, fresh = append(old, r.Text), append(fresh, r.fresh)
	}
	done, err := s.Pool.Exec(ctx, s.Update, workspaces, ids, old, fresh)
	return done.RowsAffected(), err
}

// Sealed is one row's sealed text.
type Sealed struct {
	WorkspaceID, ID uuid.UUID
	Text            []byte
}

// replacement is a row and its text under the current key.
type replacement struct {
	Sealed
	fresh []byte
}

// Report counts the rows of a store. Rows is the sum of the other counts.
type Report struct {
	Rows       int
	Current    int      // sealed with the current key
	Old        int      // open with another key
	Resealed   int      // were sealed with another key, and are now sealed with the current one
	Changed    int      // another process changed them between reading and writing
	Unreadable []Sealed // open with none of the keys
}

// storePage is how many rows are read, and written in one transaction, at a time.
const storePage = 200

// Inspect opens every row of a store and writes nothing.
func (b *Box) Inspect(ctx context.Context, s Store) (Report, error) {
	return b.pages(ctx, s, func(r *Report, old []replacement) error {
		r.Old += len(old)
		return nil
	})
}

// ResealAll seals every row that another key has sealed with the current one. It
// may be interrupted, repeated, and run while servers run: a row that is changed
// meanwhile keeps that change.
func (b *Box) ResealAll(ctx context.Context, s Store) (Report, error) {
	return b.pages(ctx, s, func(r *Report, old []replacement) error {
		if len(old) == 0 {
			return nil
		}
		n, err := s.replace(ctx, old)
		r.Resealed += int(n)
		r.Changed += len(old) - int(n)
		return err
	})
}

func (b *Box) pages(ctx context.Context, s Store, each func(*Report, []replacement) error) (r Report, err error) {
	var after Sealed
	for {
		rows, err := s.page(ctx, after, storePage)
		if err != nil {
			return r, fmt.Errorf("read sealed texts of %s: %w", s.Table, err)
		}
		var old []replacement
		for _, row := range rows {
			r.Rows++
			fresh, changed, err := b.Reseal(row.Text, s.Place(row.WorkspaceID, row.ID)...)
			switch {
			case err != nil:
				r.Unreadable = append(r.Unreadable, row)
			case changed:
				old = append(old, replacement{row, fresh})
			default:
				r.Current++
			}
		}
		if err := each(&r, old); err != nil {
			return r, fmt.Errorf("reseal %s: %w", s.Table, err)
		}
		if len(rows) < storePage {
			return r, nil
		}
		after = rows[len(rows)-1]
	}
}
