package audience

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lemma"
	"lemma/audience/wire"
)

// session is a connection to a customer's database, in a read-only transaction with
// one snapshot. Its errors are *lemma.Error. It is not used after an error.
type session interface {
	// probe reads the privileges for which a role is refused.
	probe(ctx context.Context) (role, error)
	// risks reads other privileges that the role does not need.
	risks(ctx context.Context) ([]finding, error)
	// describe makes the source parse the query, alone and wrapped, without running it.
	describe(ctx context.Context, sql string) ([]Column, error)
	// estimate is the planner's estimate of the number of rows.
	estimate(ctx context.Context, sql string) (int64, error)
	// tables lists what the role can read, up to the limits of a Schema.
	tables(ctx context.Context) (Schema, error)
	// open starts the query for the given columns. A limit of 0 means all rows.
	open(ctx context.Context, sql string, columns []string, limit int) (cursor, error)
	// lookup reads the rows that have one of the keys, and possibly others. It returns
	// the current columns with their types.
	lookup(ctx context.Context, sql, key string, columns, keys []string) (cursor, []Column, error)
	// describeMatching is describe for a query that uses the relation people.
	describeMatching(ctx context.Context, sql string) ([]Column, error)
	// matching starts such a query.
	matching(ctx context.Context, sql string, people []Person) (cursor, []Column, error)
	// wire is the connection itself, and allow begins another run on it.
	wire() *wire.Meter
	allow(budget int64, t texts)
	// end ends the transaction with its settings; again opens another with the same settings.
	end(ctx context.Context) error
	again(ctx context.Context) error
	close()
}

// link is the connection of a session.
type link struct {
	meter *wire.Meter
	texts texts // which messages of the source can be shown; noTexts before the login is done
}

func (l *link) wire() *wire.Meter { return l.meter }

func (l *link) allow(budget int64, t texts) {
	l.meter.Allow(budget)
	l.texts = t
}

// dialMetered connects to the target, and meters what it sends.
func (a *Audiences) dialMetered(ctx context.Context, t wire.Target, budget int64) (*wire.Meter, error) {
	conn, err := a.rules().Dial(ctx, t)
	if err != nil {
		return nil, err
	}
	return wire.NewMeter(conn, a.options.MaxRowBytes, budget), nil
}

// cursor iterates over the rows of a query.
type cursor interface {
	// next sets dst to the text forms of the values of the next row, nil for null, or
	// returns false after the last row. They are valid until the next call.
	next(dst [][]byte) (bool, error)
	// pause reports whether the rows so far should be processed now.
	pause() bool
}

// span bounds a run: its total time, the time for one response of the source, and the
// bytes from the wire.
type span struct {
	total, response time.Duration
	bytes           int64
}

// readSpan allows more bytes than the values, which have their own limit: a result
// also has names, lengths and the overhead of TLS.
func (a *Audiences) readSpan() span {
	return span{a.options.QueryTimeout, a.options.QueryTimeout, 4 * a.options.MaxLookupBytes}
}

func (a *Audiences) lookupSpan() span {
	return span{a.options.LookupTimeout, a.options.LookupTimeout, 4 * a.options.MaxLookupBytes}
}

// streamSpan allows twice the bytes if the query runs twice.
func (a *Audiences) streamSpan(x Audience) span {
	bytes := 2*a.options.MaxBytes + rowOverhead*a.options.MaxRows
	if x.OptedOutColumn != "" {
		bytes *= 2
	}
	return span{a.options.RunTimeout, a.options.FetchTimeout, bytes}
}

// rowOverhead is the overhead of the protocols for a row of some columns.
const rowOverhead = 64

var (
	errNoResponse = errors.New("the source did not respond in time")
	errLong       = errors.New("the run took too long")
)

// run is one use of a source: connected, probed, inside its transaction.
type run struct {
	session
	ctx        context.Context //nolint:containedctx // a run is one use of a source
	cancel     context.CancelCauseFunc
	total      *time.Timer
	response   *time.Timer
	span       span
	version    string
	warnings   []string
	revoke     []string
	release    func() bool // removes the bound of the connection
	inCallback bool        // the callback of the caller is running
	metrics    *Metrics
}

// newRun starts the timers.
func (a *Audiences) newRun(ctx context.Context, s span) *run {
	r := &run{span: s, metrics: a.options.Metrics}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.total = time.AfterFunc(s.total, func() { r.cancel(errLong) })
	r.response = time.AfterFunc(s.response, func() { r.cancel(errNoResponse) })
	return r
}

func (r *run) stop() {
	r.response.Stop()
	r.total.Stop()
	r.cancel(nil)
}

// within opens a run on the source, does work in it and closes it, within the bounds
// of s.
func (a *Audiences) within(ctx context.Context, source openedSource, s span, work func(*run) error) error {
	leave, err := a.enter(ctx, a.reads, source.sourceID)
	if err != nil {
		return err
	}
	defer leave()
	r := a.newRun(ctx, s)
	defer r.stop()
	err = r.safely(func() error {
		if err := a.start(r, source.target); err != nil {
			return err
		}
		return work(r)
	})
	r.closeSession()
	return r.explain(ctx, err)
}

// closeSession closes the session, if there is one.
func (r *run) closeSession() {
	if r.session != nil {
		_ = lemma.Recovered(func() error { r.close(); return nil })
	}
}

func (a *Audiences) start(r *run, source wire.Target) (err error) {
	ctx, cancel := context.WithTimeout(r.ctx, a.options.ConnectTimeout)
	defer cancel()
	if r.session, err = a.connect(ctx, source, r.span); err != nil {
		if ctx.Err() != nil && r.ctx.Err() == nil {
			return timedOut(err, "the source does not respond")
		}
		return err
	}
	r.bind()
	found, err := r.probe(r.ctx)
	if err != nil {
		return err
	}
	r.version = found.version
	r.warnings, err = a.options.accept(found)
	r.revoke = excessOf(found.writes).revoke
	return err
}

// bind makes the end of the run close the connection.
func (r *run) bind() { r.release = r.wire().BoundTo(r.ctx) }

// safely does work with a driver. A panic of the driver, which a source may cause, is
// an error of the source and must not end the process. A panic of the caller's
// callback is an internal error.
func (r *run) safely(work func() error) error {
	err := lemma.Recovered(work)
	var p *lemma.Panic
	switch {
	case !errors.As(err, &p):
		return err
	case r.inCallback:
		return p
	}
	return malformed(p)
}

// connect returns a nil session with every error.
func (a *Audiences) connect(ctx context.Context, source wire.Target, s span) (session, error) {
	if source.Kind == MySQL {
		return a.connectMySQL(ctx, source, s)
	}
	return a.connectPostgres(ctx, source, s)
}

// startWaiting starts the timer for a response of the source.
func (r *run) startWaiting() { r.response.Reset(r.span.response) }

// stopWaiting stops the timer: the source has responded.
func (r *run) stopWaiting() { r.response.Stop() }

// explain replaces the driver's error for a closed connection by the reason why it was closed.
func (r *run) explain(outer context.Context, err error) error {
	if errors.As(err, new(*lemma.Panic)) {
		r.metrics.panicked()
	}
	var ours callerError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ours):
		return ours.error
	case outer.Err() != nil:
		return fmt.Errorf("read data source: %w", context.Cause(outer))
	case errors.Is(context.Cause(r.ctx), errNoResponse):
		return timedOut(err, fmt.Sprintf("the source did not respond within %s", r.span.response))
	case errors.Is(context.Cause(r.ctx), errLong):
		return timedOut(err, fmt.Sprintf("reading the source took longer than %s", r.span.total))
	}
	return err
}

// callerError is an error of the caller's callback, which explain returns unchanged.
type callerError struct{ error }

// broken returns the errors that both drivers share: connections that were closed
// because of what the source sent, and connections that were lost.
func broken(m *wire.Meter, err error) *lemma.Error {
	if m != nil && m.Why() != nil {
		err = m.Why()
	}
	switch {
	case errors.Is(err, wire.ErrRowTooBig) && m != nil:
		return overLimit("a row of the source has more than %d bytes", m.MaxRow())
	case errors.Is(err, wire.ErrRowTooBig), errors.Is(err, wire.ErrOverBudget):
		return overLimit("the source sent more bytes than one read may have")
	case errors.Is(err, wire.ErrMalformed), errors.As(err, new(*lemma.Panic)):
		return malformed(err)
	}
	return connectionLost(err)
}
