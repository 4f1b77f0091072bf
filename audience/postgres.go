package audience

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"lemma"
	"lemma/audience/sqltext"
	"lemma/audience/value"
	"lemma/audience/wire"
)

// pgSession uses only the extended protocol, which accepts one statement at a time.
// The simple protocol accepts several.
type pgSession struct {
	link
	conn     *pgconn.PgConn
	declared bool                  // the transaction has a cursor
	types    map[uint32]value.Type // of the types that this database defines
	settings []string              // alternating names and values of the settings of a transaction that this version of Postgres has
}

// idleTimeout is how long the source keeps an idle transaction, for a reader that is
// busy or broken.
const idleTimeout = 10 * time.Minute

// minimalDSN makes pgconn open no file. All of its settings, and those of the
// environment, are replaced afterwards.
const minimalDSN = "host=h port=5432 user=u password=p dbname=d sslmode=disable sslcert='' sslkey='' sslrootcert='' passfile='' " +
	"target_session_attrs=any"

func (a *Audiences) pgConfig(t wire.Target) (*pgconn.Config, error) {
	c, err := pgconn.ParseConfig(minimalDSN)
	if err != nil {
		return nil, fmt.Errorf("configure postgres client: %w", err)
	}
	c.Host, c.Port, c.Database, c.User, c.Password = t.Host, t.Port, t.Database, t.User, t.Password
	c.TLSConfig, c.Fallbacks, c.ConnectTimeout = t.TLSConfig(), nil, a.options.ConnectTimeout
	c.RuntimeParams = map[string]string{"application_name": "lemma", "client_encoding": "UTF8"}
	c.RequireAuth, c.ChannelBinding, c.SSLNegotiation, c.KerberosSrvName, c.KerberosSpn = "", "prefer", "", "", ""
	c.MaxProtocolMessageBodyLen = int(a.options.MaxRowBytes + wire.ReadAhead)
	if t.TLS == "prefer" && t.Socket == "" {
		c.Fallbacks = []*pgconn.FallbackConfig{{Host: t.Host, Port: t.Port}}
	}
	if t.TLS != "require" && t.TLS != "verify-full" {
		c.RequireAuth = "!password" // never send the password in clear
	}
	if t.Socket != "" {
		c.Host, c.RequireAuth = t.Socket, ""
	}
	return c, nil
}

func (a *Audiences) connectPostgres(ctx context.Context, t wire.Target, s span) (session, error) {
	c, err := a.pgConfig(t)
	if err != nil {
		return nil, err
	}
	p := &pgSession{link: link{texts: noTexts}, types: map[uint32]value.Type{}, settings: pgSettings(s)}
	c.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(wire.NewPostgres(r, p.meter), w)
	}
	c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, a, t, s.bytes) }
	err = lemma.Recovered(func() (err error) {
		p.conn, err = pgconn.ConnectConfig(context.WithValue(ctx, loginKey{}, true), c)
		return err
	})
	if err != nil {
		if p.meter != nil {
			p.meter.Close()
		}
		return nil, p.fault(err, "", 0)
	}
	if err := lemma.Recovered(func() error { return p.begin(ctx) }); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// loginKey marks the context of a login.
type loginKey struct{}

// dial opens the connection of a login, which becomes that of the session. Without the mark the
// driver dials from a goroutine of its own, at any time, to cancel what a connection that has
// broken was doing.
func (p *pgSession) dial(ctx context.Context, a *Audiences, t wire.Target, bytes int64) (net.Conn, error) {
	m, err := a.dialMetered(ctx, t, bytes)
	if err != nil {
		return nil, err
	}
	if ctx.Value(loginKey{}) != nil {
		p.link = link{m, textsFor(ctx)}
	}
	return m, nil
}

// arrayLiteral is the text form of an array of any type.
func arrayLiteral(values []string) string {
	b := make([]byte, 0, 2+16*len(values))
	b = append(b, '{')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		for _, c := range []byte(v) {
			if c == '"' || c == '\\' {
				b = append(b, '\\')
			}
			b = append(b, c)
		}
		b = append(b, '"')
	}
	return string(append(b, '}'))
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// query runs one of Lemma's own statements and reads its whole result.
func (p *pgSession) query(ctx context.Context, sql string, args ...string) ([][][]byte, error) {
	p.meter.Progress()
	values := make([][]byte, len(args))
	for i, arg := range args {
		values[i] = []byte(arg)
	}
	result := p.conn.ExecParams(ctx, sql, values, nil, nil, nil)
	var rows [][][]byte
	size := 0
	for result.NextRow() {
		p.meter.Progress()
		row := make([][]byte, len(result.Values()))
		for i, v := range result.Values() {
			row[i] = append([]byte(nil), v...)
		}
		size += memoryOf(row)
		rows = append(rows, row)
		if len(rows) > maxSchemaColumns || size > maxCatalog {
			p.meter.Close()
			return nil, overLimit("the source's catalog is too big")
		}
	}
	tag, err := result.Close()
	if err != nil {
		return nil, p.fault(err, "", 0)
	}
	if tag.String() == "" || tag.Select() && tag.RowsAffected() > int64(len(rows)) {
		return nil, cutResult()
	}
	return rows, nil
}

// maxCatalog bounds the memory of a result of one of Lemma's own statements.
const maxCatalog = 16 << 20

// memoryOf returns the memory of a row that is kept. A null has that of a value
// without bytes.
func memoryOf[V string | []byte](row []V) int {
	const header, rounding = 24, 8
	size := header
	for _, v := range row {
		size += header + rounding + len(v)
	}
	return size
}

const (
	wrapHead = "select audience.* from (\n"
	wrapTail = "\n) as audience"
)

func (p *pgSession) describe(ctx context.Context, sql string) ([]Column, error) {
	p.meter.Progress()
	alone, err := p.conn.Prepare(ctx, "", sql, nil)
	if err != nil {
		return nil, p.fault(err, sql, 0)
	}
	if len(alone.ParamOIDs) > 0 {
		return nil, badQuery(0, 0, "the query has a parameter ($1); an audience has none")
	}
	wrapped, err := p.conn.Prepare(ctx, "", wrapHead+sql+wrapTail, nil)
	if err != nil {
		return nil, p.fault(err, sql, len(wrapHead))
	}
	return p.columns(ctx, wrapped.Fields)
}

func (p *pgSession) columns(ctx context.Context, fields []pgconn.FieldDescription) ([]Column, error) {
	if len(p.types) > maxSchemaColumns {
		clear(p.types)
	}
	if err := p.loadTypes(ctx, p.unknown(fields)); err != nil {
		return nil, err
	}
	columns := make([]Column, len(fields))
	for i, f := range fields {
		columns[i] = Column{Name: f.Name, Type: p.typeOf(f.DataTypeOID)}
	}
	return columns, nil
}

// unknown returns the types that the database defines and that are not loaded yet.
func (p *pgSession) unknown(fields []pgconn.FieldDescription) (oids []uint32) {
	for _, f := range fields {
		_, built := pgTypes[f.DataTypeOID]
		if _, asked := p.types[f.DataTypeOID]; !built && !asked {
			oids = append(oids, f.DataTypeOID)
		}
	}
	return oids
}

// pgTypes are the built-in types by their fixed object ids.
var pgTypes = map[uint32]value.Type{
	16: value.Boolean, 20: value.Integer, 21: value.Integer, 23: value.Integer, 26: value.Integer, 700: value.Number,
	701: value.Number, 1700: value.Number,
	18: value.Text, 19: value.Text, 25: value.Text, 1042: value.Text, 1043: value.Text, 705: value.Text, 114: value.JSON, 3802: value.JSON,
	1082: value.Date, 1114: value.Timestamp, 1184: value.Timestamp,
	17: value.Other, 790: value.Other, 1083: value.Other, 1186: value.Other, 1266: value.Other, 2950: value.Other, 869: value.Other,
	650: value.Other,
}

// loadTypes reads the types that pgTypes does not have: arrays, and texts that the
// database defines, such as enums and citext.
func (p *pgSession) loadTypes(ctx context.Context, oids []uint32) error {
	if len(oids) == 0 {
		return nil
	}
	texts := make([]string, len(oids))
	for i, oid := range oids {
		p.types[oid], texts[i] = value.Other, strconv.FormatUint(uint64(oid), 10)
	}
	rows, err := p.query(ctx, pgTypeQuery, arrayLiteral(texts))
	for _, row := range rows {
		learned := typeNamed(row[1], row[2])
		if len(row[3]) > 0 {
			learned = value.ListOf(typeNamed(row[3], row[4]))
		}
		p.types[oidOf(row[0])] = learned
	}
	return err
}

func (p *pgSession) typeOf(oid uint32) value.Type {
	if t, ok := pgTypes[oid]; ok {
		return t
	}
	if t, ok := p.types[oid]; ok {
		return t
	}
	return value.Other
}

// planned matches the rows that a node of a plan returns.
var planned = regexp.MustCompile(`rows=(\d+) width=\d+\)$`)

// estimate reads a plan as lines: as JSON it would be one value, longer than a row may be for a table
// of a thousand partitions.
func (p *pgSession) estimate(ctx context.Context, sql string) (int64, error) {
	first, err := p.firstLine(ctx, "explain "+wrapHead+sql+wrapTail)
	if err != nil {
		return 0, err
	}
	found := planned.FindStringSubmatch(first)
	if found == nil {
		return 0, nil // no estimate
	}
	n, _ := strconv.ParseInt(found[1], 10, 64) // one that overflows is the largest
	return n, nil
}

// firstLine reads all rows of a statement, and keeps the first value.
func (p *pgSession) firstLine(ctx context.Context, sql string) (first string, err error) {
	p.meter.Progress()
	result := p.conn.ExecParams(ctx, sql, nil, nil, nil, nil)
	for n := 0; result.NextRow(); n++ {
		p.meter.Progress()
		if values := result.Values(); n == 0 && len(values) > 0 {
			first = string(values[0])
		}
	}
	tag, err := result.Close()
	if err != nil {
		return "", p.fault(err, "", 0)
	}
	if tag.String() == "" {
		return "", cutResult()
	}
	return first, nil
}

func (p *pgSession) close() {
	defer p.meter.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx)
}

// fault converts an error of the driver. sql is the text that an error has a position in,
// behind offset characters.
func (p *pgSession) fault(err error, sql string, offset int) *lemma.Error {
	var reported *pgconn.PgError
	switch known := ours(err); {
	case known != nil:
		return known
	case errors.As(err, new(*lemma.Panic)):
		return malformed(err)
	case !errors.As(err, &reported):
		return p.lost(err)
	}
	line, column := 0, 0
	if at := int(reported.Position) - offset; sql != "" && at > 0 && at <= len([]rune(sql)) {
		line, column = sqltext.Place(sql, at)
	}
	return pgFault(reported, p.texts, line, column)
}

func (p *pgSession) lost(err error) *lemma.Error {
	if p.meter != nil && p.meter.Why() != nil {
		return broken(p.meter, err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return broken(p.meter, io.ErrUnexpectedEOF)
	}
	if strings.Contains(err.Error(), "body length") || strings.Contains(err.Error(), "max body") {
		return overLimit("a row of the source is too big")
	}
	return broken(p.meter, err)
}

// pgFault maps by SQLSTATE. Its cause, which is logged, contains only the part of the
// message that can be shown, since messages can contain data.
func pgFault(answer *pgconn.PgError, t texts, line, column int) *lemma.Error {
	message := t.shown(answer.Code, answer.Message, answer.Position > 0) // only the parser sets a position
	reported := &pgconn.PgError{Severity: answer.Severity, Code: answer.Code, Message: message}
	switch {
	case reported.Code == "57014" || reported.Code == "55P03" || reported.Code == "25P04":
		return timedOut(reported, "the source stopped the query at its time limit")
	case reported.Code == "28P01" || reported.Code == "28000" || reported.Code == "3D000":
		return refused(reported, "the source refused the login or has no such database")
	case strings.HasPrefix(reported.Code, "08"), strings.HasPrefix(reported.Code, "53"), strings.HasPrefix(reported.Code,
		"57"), strings.HasPrefix(reported.Code, "58"),
		strings.HasPrefix(reported.Code, "XX"), reported.Code == "25P03", reported.Code == "HV00N", strings.HasPrefix(reported.Code, "40"):
		return unavailable(reported, "the source failed: "+message)
	case reported.Code == "25006":
		return badQuery(line, column, "the query writes: %s", message)
	}
	e := badQuery(line, column, "%s", message)
	e.Cause = reported
	return e
}
