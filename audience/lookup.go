package audience

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// MaxLookup is how many profiles one lookup or matching may ask about.
const MaxLookup = 1000

// Lookup reads the rows of some profiles now, all of one moment, with the
// columns of the payload as Stream gives them. Keys that are not in the
// audience are not in the answer; of two rows with one key the first counts,
// and it is opted out if any of them is.
// Where the source has an index on the key column, it can be used.
//
// Errors that the source is to blame for are *lemma.Error with one of the codes
// of this package. Those of the kind Unavailable may be gone a little later.
// Others may be about one of the profiles, or about so many at once.
func (a *Audiences) Lookup(ctx context.Context, ws, id uuid.UUID, columns, keys []string) (map[string]Row, error) {
	rows := make(map[string]Row, len(keys))
	err := a.LookupEach(ctx, ws, id, columns, keys, func(row Row) {
		if first, twice := rows[row.Key]; twice {
			first.OptedOut = first.OptedOut || row.OptedOut
			row = first
		}
		rows[row.Key] = row
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// LookupEach is Lookup for audiences that may have several rows with one key:
// it yields them all, and with an error some of them.
func (a *Audiences) LookupEach(ctx context.Context, ws, id uuid.UUID, columns, keys []string, yield func(Row)) error {
	if len(keys) > MaxLookup {
		return fmt.Errorf("look up %d profiles: at most %d go at once", len(keys), MaxLookup)
	}
	asked, set := askable(keys)
	if len(asked) == 0 {
		return nil
	}
	x, source, err := a.forReading(ctx, ws, id)
	if err != nil {
		return err
	}
	return a.shortly(ctx, source, func(r *run, c *connection) error {
		s, err := a.openLookup(r, c, x, columns, asked)
		if err != nil {
			return err
		}
		return noLongerValid(s.each(func(row Row) error {
			if set[row.Key] {
				yield(row)
			}
			return nil
		}))
	})
}

// ofLookups are the limits of an answer that is kept in memory as a whole.
func (o Options) ofLookups() Options {
	o.MaxBytes = min(o.MaxBytes, o.MaxLookupBytes)
	return o
}

// askable are the different keys that somebody could have.
func askable(keys []string) ([]string, map[string]bool) {
	asked, set := make([]string, 0, len(keys)), make(map[string]bool, len(keys))
	for _, key := range keys {
		if IsKey(key) && !set[key] {
			set[key] = true
			asked = append(asked, key)
		}
	}
	return asked, set
}

// IsKey reports whether a text can be a profile key.
func IsKey(key string) bool {
	return key != "" && len(key) <= MaxKey && utf8.ValidString(key) && !strings.ContainsRune(key, 0)
}

// openLookup has the source describe the whole query once on a connection, and
// compares the types of what is read with what was saved each time.
func (a *Audiences) openLookup(r *run, c *connection, x Audience, columns, keys []string) (*stream, error) {
	if !c.known[x.SQL] {
		if err := r.stillAs(x, columns); err != nil {
			return nil, err
		}
		c.remember(x.SQL)
	}
	s, read := a.newStream(r, x, columns)
	s.options = a.options.ofLookups()
	var live []Column
	var err error
	if s.cursor, live, err = r.lookup(r.ctx, x.SQL, x.KeyColumn, read, keys); err != nil {
		return nil, noLongerValid(err)
	}
	return s, x.sameTypes(live, columns)
}
