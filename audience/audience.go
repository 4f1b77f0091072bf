// Package audience is the window onto the customer's own database. It
// promises two things. To whoever sends: a stream tells the whole truth of one
// moment in the order the source gives it, in constant memory, or it fails
// with a code that says why; it never ends early as if that were all. To the
// customer: whatever text somebody saves as an audience, Lemma only reads, as
// a role that can do nothing else, within limits of time, rows and bytes, and
// dials nothing but a database that may be dialled.
//
// It owns data_sources and audiences and is the only code that touches a
// customer's database. Who of an audience is written to is decided in
// campaigns; what is written, in message.
package audience

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/secrets"
	"lemma/slots"
)

// Options bound what a source may cost and where it may be. The zero value of
// each field means the default beside it.
type Options struct {
	AllowPrivate bool // dial loopback, private and shared (CGNAT) addresses too: for a source in one's own network, and for development
	AllowUnix    bool // take DSNs that name a unix socket directory: for development

	ConnectTimeout time.Duration // to reach the source and log in: 10 s
	QueryTimeout   time.Duration // for the whole of a test, schema, validate or preview: 15 s
	LookupTimeout  time.Duration // for the whole of a lookup or matching, connecting included: 10 s
	FetchTimeout   time.Duration // silence of the source while a stream waits for rows: 60 s
	RunTimeout     time.Duration // for the whole of a stream or count: 1 h

	MaxRows        int64 // of one stream or count: 20 million
	MaxBytes       int64 // of values in one stream or count: 8 GiB
	MaxLookupBytes int64 // of values in one lookup or matching: 64 MiB
	MaxRowBytes    int64 // of values in one row: 1 MiB
	MaxDistinct    int   // addresses that a count remembers to find repeated ones, of 11 bytes each: 2 million

	AllowWriting bool // take roles that can write, with a warning

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

func orDefault[T int | int64 | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// Audiences keeps data sources and audiences and reads from them. It is safe
// for concurrent use.
type Audiences struct {
	pool    *pgxpool.Pool
	box     *secrets.Box
	options Options
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
	idle    idle
	reads   *slots.Slots // of tests, schemas, validations and previews
	counts  *slots.Slots
}

// New makes the room. box seals the DSNs of data sources. Who looks people up
// calls Close in the end.
func New(pool *pgxpool.Pool, box *secrets.Box, options Options) *Audiences {
	return &Audiences{pool: pool, box: box, options: options.withDefaults(), resolve: net.DefaultResolver.LookupNetIP,
		reads: newSlots(limitsOfReads, options.Metrics), counts: newSlots(limitsOfCounts, options.Metrics),
		idle: idle{lists: map[sourceID][]*connection{}, longer: idleFor}}
}
