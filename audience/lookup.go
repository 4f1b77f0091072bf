package audience

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"lemma"
)

// MaxLookup is the largest number of profiles of one lookup or matching.
const MaxLookup = 1000

// lookupSlab bounds the memory of a lookup, besides its current row and what the caller keeps.
const lookupSlab = 256 << 10

// What Lookup keeps of the further rows of a profile.
const (
	maxOthers      = 100
	maxOthersBytes = 64 << 10
)

// Found are the rows that a lookup has kept.
type Found struct {
	Rows   map[string]Row             // by key: the first one
	Others map[string][]Row           // by key: further ones, whose addresses differ from those before
	More   map[string][]lemma.Channel // by key: channels with other addresses in rows that were not kept
	Left   map[string]bool            // keys whose rows were not kept
	Bytes  int                        // of Rows and Others
}

// Lookup reads the rows of profiles in one snapshot, with the columns of the payload
// like Stream. Profiles that are not in the audience are left out. A profile is opted out
// if any of its rows is. Profiles beyond so many bytes are left, except the first. Errors of the
// source are *lemma.Error with a code of this package: Unavailable ones are temporary, others may be
// due to a profile or to their number.
func (a *Audiences) Lookup(ctx context.Context, ws, id uuid.UUID, columns, keys []string, bytes int) (Found, error) {
	f := Found{Rows: make(map[string]Row, len(keys)), Others: map[string][]Row{}, More: map[string][]lemma.Channel{}, Left: map[string]bool{}}
	err := a.LookupEach(ctx, ws, id, columns, keys, func(row Row) error { f.add(row, bytes); return nil })
	return f, err
}

func (f *Found) add(row Row, most int) {
	first, twice := f.Rows[row.Key]
	size := row.size()
	switch {
	case twice:
		first.OptedOut = first.OptedOut || row.OptedOut
		f.Rows[row.Key] = first
		f.addOther(first, row, most)
	case f.Left[row.Key]:
	case f.Bytes > 0 && f.Bytes+size > most:
		f.Left[strings.Clone(row.Key)] = true
	default:
		row = row.clone()
		f.Rows[row.Key] = row
		f.Bytes += size
	}
}

// addOther adds a further row of a profile.
func (f *Found) addOther(first, row Row, most int) {
	others, bytes := f.Others[row.Key], row.size()
	for _, r := range others {
		bytes += r.size()
	}
	switch {
	case row.sameAddresses(Row{}) || row.sameAddresses(first) || slices.ContainsFunc(others, row.sameAddresses):
	case len(others) >= maxOthers || bytes > maxOthersBytes:
		f.addMore(first, others, row)
	case len(f.Rows) > 1 && f.Bytes+row.size() > most:
		delete(f.Rows, first.Key)
		delete(f.Others, first.Key)
		f.Left[first.Key] = true
	default:
		f.Others[first.Key] = append(others, row.clone())
		f.Bytes += row.size()
	}
}

// addMore notes the channels in which a row that is not kept has other addresses.
func (f *Found) addMore(first Row, others []Row, row Row) {
	for _, channel := range []lemma.Channel{lemma.Email, lemma.SMS, lemma.Push} {
		value := row.written(channel)
		same := func(r Row) bool { return r.written(channel) == value }
		if value != "" && !same(first) && !slices.ContainsFunc(others, same) && !slices.Contains(f.More[first.Key], channel) {
			f.More[first.Key] = append(f.More[first.Key], channel)
		}
	}
}

// LookupEach is Lookup for audiences that may have several rows with one key. It
// yields all rows, and keeps none. Before an error it may yield some. An error of
// yield ends the lookup and is returned unchanged.
//
// The lookups for callers (see ForCaller) at a time are bounded. Others wait, and are
// refused with CodeOverloaded after slots.Wait.
func (a *Audiences) LookupEach(ctx context.Context, ws, id uuid.UUID, columns, keys []string, yield func(Row) error) error {
	return a.lookupEach(ctx, ws, id, columns, keys, false, yield)
}

// CurrentEach is LookupEach without a payload. Rows that are too large come as such: one of them does not
// hide those of other profiles.
func (a *Audiences) CurrentEach(ctx context.Context, ws, id uuid.UUID, keys []string, yield func(Row) error) error {
	return a.lookupEach(ctx, ws, id, nil, keys, true, yield)
}

func (a *Audiences) lookupEach(ctx context.Context, ws, id uuid.UUID, columns, keys []string, large bool, yield func(Row) error) error {
	if len(keys) > MaxLookup {
		return fmt.Errorf("look up %d profiles: must be at most %d", len(keys), MaxLookup)
	}
	asked, set := validKeys(keys)
	if len(asked) == 0 {
		return nil
	}
	x, source, err := a.forReading(ctx, ws, id)
	if err != nil {
		return err
	}
	return a.withConnection(ctx, source, func(r *run, c *connection) error {
		if large {
			r.wire().ShortenRows()
		}
		s, err := a.openLookup(r, c, x, columns, asked)
		if err != nil {
			return err
		}
		s.large = large
		return noLongerValid(s.each(func(row Row) error {
			if !set[row.Key] {
				return nil
			}
			return yield(row)
		}))
	})
}

// forLookups returns the limits of a result that is kept in memory.
func (o Options) forLookups() Options {
	o.MaxBytes = min(o.MaxBytes, o.MaxLookupBytes)
	return o
}

// validKeys returns the distinct keys that a profile can have.
func validKeys(keys []string) ([]string, map[string]bool) {
	asked, set := make([]string, 0, len(keys)), make(map[string]bool, len(keys))
	for _, key := range keys {
		if IsKey(key) && !set[key] {
			set[key] = true
			asked = append(asked, key)
		}
	}
	return asked, set
}

// IsKey reports whether a text can be a profile key. Requests and events have the same
// rule (enrollment.IsProfileKey), so that each key of a campaign can be named.
func IsKey(key string) bool {
	return key != "" && len(key) <= MaxKey && utf8.ValidString(key) && !strings.ContainsRune(key, 0) && strings.TrimSpace(key) == key
}

// openLookup makes the source describe the query once per connection, and compares
// the types of the columns with the saved ones each time.
func (a *Audiences) openLookup(r *run, c *connection, x Audience, columns, keys []string) (*stream, error) {
	if !c.known[x.SQL] {
		if err := r.checkUnchanged(x, columns); err != nil {
			return nil, err
		}
		c.remember(x.SQL)
	}
	s, read := a.newStream(r, x, columns)
	s.options, s.most = a.options.forLookups(), lookupSlab
	var live []Column
	var err error
	if s.cursor, live, err = r.lookup(r.ctx, x.SQL, x.KeyColumn, read, keys); err != nil {
		return nil, noLongerValid(err)
	}
	return s, x.sameTypes(live, columns)
}
