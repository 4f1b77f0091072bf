// Package audience reads the customer's database. It guarantees:
//
//   - A stream returns all rows of one snapshot, in the order of the query and in
//     constant memory, or fails with a code. It never ends early without an error.
//   - Whatever query is saved, Lemma only reads: as a role that can only read,
//     within limits of time, rows and bytes, from an address that is allowed.
//
// It owns data_sources and audiences, and only it reads a customer's database. Its own
// packages are wire, which connects, sqltext, which checks the text of queries, and
// value, which writes values as JSON. Package campaigns decides which rows become
// recipients.
package audience

import (
	"context"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/audience/sqltext"
	"lemma/audience/wire"
	"lemma/dial"
	"lemma/secrets"
	"lemma/slots"
)

// The kinds of data source. MySQL includes MariaDB.
const (
	Postgres = sqltext.Postgres
	MySQL    = sqltext.MySQL
)

// Options bound the cost and the address of a source. A zero value means the
// default in its comment.
type Options struct {
	AllowPrivate bool // allow loopback, private and shared (CGNAT) addresses
	AllowUnix    bool // allow DSNs with a unix socket directory: for development

	ConnectTimeout time.Duration // to reach the source and log in: 10 s
	QueryTimeout   time.Duration // for the whole of a test, schema, validate or preview: 15 s
	LookupTimeout  time.Duration // for the whole of a lookup or matching, connecting included: 10 s
	FetchTimeout   time.Duration // without a response while a stream waits for rows: 60 s
	RunTimeout     time.Duration // for the whole of a stream or count: 1 h

	MaxRows        int64 // of one stream or count: 20 million
	MaxBytes       int64 // of values in one stream or count: 8 GiB
	MaxLookupBytes int64 // of values in one lookup or matching: 64 MiB
	MaxRowBytes    int64 // of values in one row: 1 MiB
	MaxDistinct    int   // addresses in which a count finds repetitions, of 11 bytes each: 2 million

	AllowWriting bool // accept roles that can write, with a warning

	Metrics *Metrics // nil: none
}

func (o Options) withDefaults() Options {
	o.ConnectTimeout = orDefault(o.ConnectTimeout, 10*time.Second)
	o.QueryTimeout = orDefault(o.QueryTimeout, 15*time.Second)
	o.LookupTimeout = orDefault(o.LookupTimeout, 10*time.Second)
	o.FetchTimeout = orDefault(o.FetchTimeout, time.Minute)
	o.RunTimeout = orDefault(o.RunTimeout, time.Hour)
	o.MaxRows = orDefault(o.MaxRows, 20_000_000)
	o.MaxBytes = orDefault(o.MaxBytes, 8<<30)
	o.MaxLookupBytes = orDefault(o.MaxLookupBytes, 64<<20)
	o.MaxRowBytes = orDefault(o.MaxRowBytes, 1<<20)
	o.MaxDistinct = orDefault(o.MaxDistinct, 2_000_000)
	return o
}

// rules are those for the addresses of sources.
func (a *Audiences) rules() wire.Rules {
	return wire.Rules{AllowPrivate: a.options.AllowPrivate, AllowUnix: a.options.AllowUnix, Resolve: a.resolve}
}

func orDefault[T int | int64 | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// Audiences stores data sources and audiences and reads from them. It is safe
// for concurrent use.
type Audiences struct {
	pool    *pgxpool.Pool
	box     *secrets.Box
	options Options
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
	idle    idle
	reads   *slots.Slots // of tests, schemas, validations and previews
	lookups *slots.Slots // of lookups and matchings
	counts  *slots.Slots
}

// New returns Audiences. box encrypts the DSNs of data sources. After lookups, Close
// closes the idle connections.
func New(pool *pgxpool.Pool, box *secrets.Box, options Options) *Audiences {
	return &Audiences{pool: pool, box: box, options: options.withDefaults(), resolve: dial.Resolver.LookupNetIP,
		reads:   newSlots(limitsOfReads, options.Metrics),
		lookups: newSlots(limitsOfReads, options.Metrics), counts: newSlots(limitsOfCounts, options.Metrics),
		idle: newIdle()}
}
