package audience

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lemma"
)

// session is one connection to a customer's database, inside one read-only
// transaction that sees one moment. Its errors are *lemma.Error. It is never
// used again after one.
type session interface {
	// probe reads what the role may do that it is refused for.
	probe(ctx context.Context) (role, error)
	// risks reads what else the role may do that it does not need.
	risks(ctx context.Context) ([]finding, error)
	// describe has the source parse the query, alone and wrapped, without running it.
	describe(ctx context.Context, sql string) ([]Column, error)
	// estimate is the planner's guess at the number of rows.
	estimate(ctx context.Context, sql string) (int64, error)
	// tables lists what the role can read, up to maxSchemaColumns columns.
	tables(ctx context.Context) ([]Table, error)
	// open starts the query for the given columns. With limit 0 it has all rows.
	open(ctx context.Context, sql string, columns []string, limit int) (cursor, error)
	// lookup reads the rows that have one of the keys, and perhaps others. The
	// columns are those of the answer: the live ones, with their types.
	lookup(ctx context.Context, sql, key string, columns, keys []string) (cursor, []Column, error)
	// describeMatching is describe for a query that uses the relation people.
	describeMatching(ctx context.Context, sql string) ([]Column, error)
	// matching starts such a query.
	matching(ctx context.Context, sql string, people []Person) (cursor, []Column, error)
	// wire is the connection itself.
	wire() *meter
	// end leaves the transaction, and whatever was set in it; again opens another like it.
	end(ctx context.Context) error
	again(ctx context.Context) error
	close()
}

// cursor gives the rows of a query one by one.
type cursor interface {
	// next fills dst with the text forms of the values of the next row, nil for
	// null, or answers false after the last. They hold until the next call.
	next(dst [][]byte) (bool, error)
	// pause reports whether this is a good moment to work on the rows so far.
	pause() bool
}

// span is how much a run may take: time in all, time for one answer of the
// source, and bytes off the wire.
type span struct {
	total, response time.Duration
	bytes           int64
}

// Beside the values that are counted for themselves, an answer has names,
// lengths and the overhead of TLS. A server that sends no more than those stays
// far below these bounds.
func (a *Audiences) readSpan() span {
	return span{a.options.QueryTimeout, a.options.QueryTimeout, 4 * a.options.MaxLookupBytes}
}

func (a *Audiences) lookupSpan() span {
	return span{a.options.LookupTimeout, a.options.LookupTimeout, 4 * a.options.MaxLookupBytes}
}

// streaming allows twice the bytes to an audience whose query runs twice.
func (a *Audiences) streamSpan(x Audience) span {
	bytes := 2*a.options.MaxBytes + rowOverhead*a.options.MaxRows
	if x.OptedOutColumn != "" {
		bytes *= 2
	}
	return span{a.options.RunTimeout, a.options.FetchTimeout, bytes}
}

// rowOverhead is what the protocols add to a row of some columns.
const rowOverhead = 64

var (
	errNoResponse = errors.New("the source was silent for too long")
	errLong       = errors.New("the run took too long")
)

// run is one use of a source: connected, probed, inside its transaction.
type run struct {
	session
	ctx        context.Context
	cancel     context.CancelCauseFunc
	total      *time.Timer
	response   *time.Timer
	span       span
	version    string
	warnings   []string
	revoke     []string
	release    func() bool // takes the bound off the connection
	inCallback bool        // the caller's own code is running
	metrics    *Metrics
}

// newRun starts the clocks.
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

// within opens a run on the source, does work in it and closes it. Whatever
// happens, the source holds the caller no longer than s allows.
func (a *Audiences) within(ctx context.Context, source openedSource, s span, work func(*run) error) error {
	leave, err := a.enter(ctx, source.sourceID)
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

// abandon closes the session, if there is one.
func (r *run) closeSession() {
	if r.session != nil {
		_ = lemma.Recovered(func() error { r.session.close(); return nil })
	}
}

func (a *Audiences) start(r *run, source target) (err error) {
	ctx, cancel := context.WithTimeout(r.ctx, a.options.ConnectTimeout)
	defer cancel()
	if r.session, err = a.connect(ctx, source, r.span); err != nil {
		if ctx.Err() != nil && r.ctx.Err() == nil {
			return timedOut(err, "the source does not answer")
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

// bind has the end of the run close the connection, whatever waits on it.
func (r *run) bind() { r.release = r.wire().boundTo(r.ctx) }

// safely does work with a driver. What a source sends may make the driver
// panic: that is the source's failure, and must not end the process. A panic
// of the caller's own code is one of ours.
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
func (a *Audiences) connect(ctx context.Context, source target, s span) (session, error) {
	if source.kind == MySQL {
		return a.connectMySQL(ctx, source, s)
	}
	return a.connectPostgres(ctx, source, s)
}

// listen starts the clock of silence: from here on the source is waited for.
func (r *run) startWaiting() { r.response.Reset(r.span.response) }

// rest stops it: what takes time now is not the source's doing.
func (r *run) stopWaiting() { r.response.Stop() }

// explain replaces what a driver says about a connection that we cut by the reason for it.
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
	case context.Cause(r.ctx) == errNoResponse:
		return timedOut(err, fmt.Sprintf("the source did not answer within %s", r.span.response))
	case context.Cause(r.ctx) == errLong:
		return timedOut(err, fmt.Sprintf("reading the source took longer than %s", r.span.total))
	}
	return err
}

// callerError carries an error of the caller's own past the explanations.
type callerError struct{ error }

// broken reports what the two drivers answer alike: connections that we ended
// for what came over them, and connections that are lost.
func broken(m *meter, err error) *lemma.Error {
	if m != nil && m.why() != nil {
		err = m.why()
	}
	switch {
	case errors.Is(err, errRowTooBig) && m != nil:
		return overLimit("a row of the source has more than %d bytes", m.limit-readAhead)
	case errors.Is(err, errRowTooBig), errors.Is(err, errOverBudget):
		return overLimit("the source sent more bytes than one reading may have")
	case errors.Is(err, errMalformed), errors.As(err, new(*lemma.Panic)):
		return malformed(err)
	}
	return connectionLost(err)
}
