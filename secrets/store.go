package secrets

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// Store is a column of sealed texts, as the package that owns the table reads
// and replaces them. Every package that seals has one.
type Store struct {
	Table  string // for people
	Prefix string // of the rows' ids in the API

	// Place is the additional data of a row.
	Place func(workspace, id uuid.UUID) []string
	// Page reads at most limit rows that have a sealed text, in the order of
	// workspace and id, behind those of after.
	Page func(ctx context.Context, after Sealed, limit int) ([]Sealed, error)
	// Replace writes each row's Fresh where its Text is still there, in one
	// statement, and answers how many rows that were.
	Replace func(ctx context.Context, rows []Replacement) (int64, error)
}

// Sealed is one row's sealed text.
type Sealed struct {
	WorkspaceID, ID uuid.UUID
	Text            []byte
}

// Replacement is a row and its text under the current key.
type Replacement struct {
	Sealed
	Fresh []byte
}

// Report counts the rows of a store. Rows is the sum of the other counts.
type Report struct {
	Rows     int
	Current  int      // sealed with the current key
	Old      int      // open with another key; Reseal leaves none
	Resealed int      // were sealed with another key, and are now with the current one
	Changed  int      // were changed by somebody else between reading and writing
	Shut     []Sealed // open with none of the keys
}

// storePage is how many rows are read, and written in one transaction, at a time.
const storePage = 200

// Inspect opens every row of a store and writes nothing.
func (b *Box) Inspect(ctx context.Context, s Store) (Report, error) {
	return b.pages(ctx, s, func(r *Report, old []Replacement) error {
		r.Old += len(old)
		return nil
	})
}

// ResealAll seals every row of a store that another key has sealed with the
// current one. It may be repeated and interrupted, and run beside nodes that
// work: a row that somebody changes meanwhile keeps that change.
func (b *Box) ResealAll(ctx context.Context, s Store) (Report, error) {
	return b.pages(ctx, s, func(r *Report, old []Replacement) error {
		if len(old) == 0 {
			return nil
		}
		n, err := s.Replace(ctx, old)
		r.Resealed += int(n)
		r.Changed += len(old) - int(n)
		return err
	})
}

func (b *Box) pages(ctx context.Context, s Store, each func(*Report, []Replacement) error) (r Report, err error) {
	var after Sealed
	for {
		rows, err := s.Page(ctx, after, storePage)
		if err != nil {
			return r, fmt.Errorf("read sealed texts of %s: %w", s.Table, err)
		}
		var old []Replacement
		for _, row := range rows {
			r.Rows++
			fresh, changed, err := b.Reseal(row.Text, s.Place(row.WorkspaceID, row.ID)...)
			switch {
			case err != nil:
				r.Shut = append(r.Shut, row)
			case changed:
				old = append(old, Replacement{row, fresh})
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
