package audience

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"lemma"
	"lemma/audience/wire"
)

// mysqlConn is a connection of the driver. It is used without the pool of
// database/sql.
type mysqlConn interface {
	driver.Conn
	driver.QueryerContext
	driver.ExecerContext
	driver.ConnPrepareContext
}

type mysqlSession struct {
	link
	login     func(context.Context) (mysqlConn, *wire.MySQL, error)
	database  string // of the DSN
	conn      mysqlConn
	stream    *wire.MySQL
	id        string // of the connection at the server
	version   string
	private   bool   // over a socket or TLS
	reading   bool   // a result has not been read to its end
	collation string // of the keys of people: that of the database if it is one of Unicode
}

// mysqlConfig depends only on the target: no files are sent to the server, one
// statement at a time, no password in clear. TLS begins below the driver, which
// assumes a unix socket if the connection is encrypted.
func mysqlConfig(t wire.Target, w *wire.MySQL) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName, c.Net, c.Addr = t.User, t.Password, t.Database, "tcp", t.String()
	c.Logger, c.Collation = &mysql.NopLogger{}, "utf8mb4_general_ci"
	c.AllowAllFiles, c.MultiStatements, c.AllowCleartextPasswords, c.AllowOldPasswords = false, false, false, false
	if t.Socket != "" || w.Encrypted() {
		c.Net = "unix"
	}
	c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return w, nil }
	return c
}

func (a *Audiences) connectMySQL(ctx context.Context, t wire.Target, s span) (session, error) {
	m := &mysqlSession{link: link{texts: noTexts}, database: t.Database}
	m.login = func(ctx context.Context) (mysqlConn, *wire.MySQL, error) { return a.loginMySQL(ctx, t, s.bytes) }
	var err error
	if m.conn, m.stream, err = m.login(ctx); err != nil {
		return nil, m.fault(err)
	}
	m.link = link{m.stream.Meter, textsFor(ctx)}
	m.private = t.Socket != "" || m.stream.Encrypted()
	defer m.meter.BoundTo(ctx)()
	if err := lemma.Recovered(func() error { return m.begin(ctx, s) }); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// loginMySQL closes the connection after an error.
func (a *Audiences) loginMySQL(ctx context.Context, t wire.Target, budget int64) (mysqlConn, *wire.MySQL, error) {
	m, err := a.dialMetered(ctx, t, budget)
	if err != nil {
		return nil, nil, err
	}
	release := m.BoundTo(ctx)
	defer release()
	w, err := wire.StartMySQL(m, t)
	if err != nil {
		return nil, nil, m.Fail(err)
	}
	connector, err := mysql.NewConnector(mysqlConfig(t, w))
	if err != nil {
		return nil, nil, m.Fail(fmt.Errorf("configure mysql client: %w", err))
	}
	var conn driver.Conn
	err = lemma.Recovered(func() (err error) { conn, err = connector.Connect(ctx); return err })
	if err != nil {
		if why := m.Why(); why != nil {
			err = why
		}
		m.Close()
		return nil, nil, err
	}
	return conn.(mysqlConn), w, nil
}

// begin sets and bounds the session, and opens its first transaction. The limit is that
// of the first statement, since a server may have one of 0 rows.
func (m *mysqlSession) begin(ctx context.Context, s span) error {
	rows, err := m.query(ctx, "select connection_id(), version() limit 1")
	if err != nil {
		return err
	}
	if len(rows) != 1 {
		return malformed(nil)
	}
	m.id, m.version = rows[0][0], rows[0][1]
	if err := m.set(ctx, append(m.settings(), m.bounds(s)...)); err != nil {
		return err
	}
	return m.again(ctx)
}

// again opens another transaction. A query cannot change the settings of begin, but a
// proxy may have lost them.
func (m *mysqlSession) again(ctx context.Context) error {
	if err := m.exec(ctx, "start transaction with consistent snapshot, read only"); err != nil {
		return err
	}
	return m.verify(ctx)
}

func (m *mysqlSession) end(ctx context.Context) error { return m.exec(ctx, "rollback") }

func (m *mysqlSession) isMariaDB() bool { return strings.Contains(m.version, "MariaDB") }

func (m *mysqlSession) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := m.conn.ExecContext(ctx, statement, nil); err != nil {
			return m.fault(err)
		}
	}
	return nil
}

// query runs one of Lemma's own statements and reads its whole result.
func (m *mysqlSession) query(ctx context.Context, statement string) ([][]string, error) {
	c, err := m.start(ctx, statement)
	if err != nil {
		return nil, err
	}
	defer c.close()
	values := make([][]byte, len(c.raw))
	var all [][]string
	for size := 0; ; {
		more, err := c.next(values)
		if err != nil || !more {
			return all, err
		}
		row := make([]string, len(values))
		for i, v := range values {
			row[i] = string(v)
		}
		size += memoryOf(row)
		if all = append(all, row); len(all) > maxSchemaColumns || size > maxCatalog {
			m.meter.Close()
			return nil, overLimit("the source's catalog is too big")
		}
	}
}

func (m *mysqlSession) start(ctx context.Context, statement string) (*mysqlCursor, error) {
	m.meter.Progress()
	m.reading = true
	rows, err := m.conn.QueryContext(ctx, statement, nil)
	if err != nil {
		return nil, m.fault(err)
	}
	n := len(rows.Columns())
	return &mysqlCursor{session: m, rows: rows, raw: make([]driver.Value, n)}, nil
}

// describe prepares the text alone and wrapped. Preparing returns the columns, and
// runs nothing.
func (m *mysqlSession) describe(ctx context.Context, sql string) ([]Column, error) {
	if _, parameters, err := m.prepared(ctx, sql); err != nil || parameters > 0 {
		return nil, orParameter(err, "the query has a parameter (?); an audience has none")
	}
	columns, _, err := m.prepared(ctx, wrapHead+sql+wrapTail)
	return columns.columns(), err
}

func orParameter(err error, detail string) error {
	if err != nil {
		return err
	}
	return badQuery(0, 0, "%s", detail)
}

// prepared makes the server describe a statement.
func (m *mysqlSession) prepared(ctx context.Context, text string) (columns mysqlColumns, parameters int, err error) {
	statement, columns, err := m.prepare(ctx, text)
	if err != nil {
		return nil, 0, err
	}
	defer statement.Close()
	return columns, statement.NumInput(), nil
}

// prepare reads the columns from the wire, since the driver does not return them.
func (m *mysqlSession) prepare(ctx context.Context, text string) (driver.Stmt, mysqlColumns, error) {
	m.meter.Progress()
	var statement driver.Stmt
	columns, err := m.stream.Columns(func() (err error) {
		statement, err = m.conn.PrepareContext(ctx, text)
		return err
	})
	if err != nil {
		return nil, nil, m.fault(err)
	}
	return statement, mysqlColumnsOf(columns), nil
}

// estimate multiplies the planner's estimates for the tables of the outermost select,
// which is rough.
func (m *mysqlSession) estimate(ctx context.Context, sql string) (int64, error) {
	c, err := m.start(ctx, "explain format = traditional "+wrapHead+sql+wrapTail)
	if err != nil {
		return 0, err
	}
	defer c.close()
	names := c.rows.Columns()
	values, total, found := make([][]byte, len(c.raw)), 1.0, false
	for {
		more, err := c.next(values)
		if err != nil || !more {
			return estimated(total, found), err
		}
		id, rows := "", ""
		for i, name := range names {
			switch strings.ToLower(name) {
			case "id":
				id = string(values[i])
			case "rows":
				rows = string(values[i])
			}
		}
		if n, err := strconv.ParseFloat(rows, 64); err == nil && id == "1" {
			total, found = total*n, true
		}
	}
}

func estimated(total float64, found bool) int64 {
	if !found {
		return 0
	}
	return int64(min(total, 1e15))
}

const mysqlTables = `
select table_schema, table_name, column_name, upper(if(column_type = 'bit(1)', column_type, data_type)), is_nullable
  from information_schema.columns
 where table_schema not in ('mysql', 'information_schema', 'performance_schema', 'sys')
 order by 1, 2, ordinal_position
 limit 20000`

func (m *mysqlSession) tables(ctx context.Context) (Schema, error) {
	rows, err := m.query(ctx, mysqlTables)
	var list tableList
	for _, r := range rows {
		list.add(r[0], r[1], TableColumn{r[2], mysqlType(r[3]), strings.EqualFold(r[4], "yes")})
	}
	return list.Schema, err
}

// close closes the connection without reading the rest of a result, which could take
// long. The server notices only at its next row, so an unfinished query is killed
// from another connection. The driver is closed too, since a goroutine of it waits
// for that.
func (m *mysqlSession) close() {
	m.meter.Close()
	m.conn.Close()
	if m.reading && m.id != "" {
		ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		m.kill(ctx)
	}
}

const killTimeout = 2 * time.Second

// kill is best effort: the server's own time limit ends the query otherwise.
func (m *mysqlSession) kill(ctx context.Context) {
	id, err := strconv.ParseUint(m.id, 10, 64)
	if err != nil {
		return
	}
	conn, w, err := m.login(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	defer w.Meter.BoundTo(ctx)()
	_, _ = conn.ExecContext(ctx, fmt.Sprintf("kill %d", id), nil)
}

// fault converts an error of the driver.
func (m *mysqlSession) fault(err error) *lemma.Error {
	var reported *mysql.MySQLError
	switch {
	case errors.Is(err, mysql.ErrMalformPkt), errors.Is(err, mysql.ErrPktSync), errors.Is(err, mysql.ErrPktSyncMul), errors.Is(err,
		mysql.ErrBusyBuffer):
		return malformed(err)
	case !errors.As(err, &reported):
		return broken(m.meter, err)
	}
	ofText := slices.Contains(ofTexts, reported.Number)
	message, line := m.texts.shown(string(reported.SQLState[:]), reported.Message, ofText), lineOf(reported.Message)
	// The cause is logged, and could contain data.
	reported = &mysql.MySQLError{Number: reported.Number, SQLState: reported.SQLState, Message: message}
	switch reported.Number {
	case 1044, 1045, 1049, 1698, 1820, 1862, 3118: // login, database, expired password, locked account
		return refused(reported, "the source refused the login or has no such database")
	case 1317, 3024, 1969, 1205, 1028: // interrupted, time limits of MySQL and MariaDB, lock wait
		return timedOut(reported, "the source stopped the query at its time limit")
	case 1792:
		return badQuery(0, 0, "the query writes: %s", message)
	}
	if isAway(reported) {
		return unavailable(reported, "the source failed: "+message)
	}
	e := badQuery(line, 0, "%s", message)
	e.Cause = reported
	return e
}

// isAway reports errors that are no fault of the query: of connections (SQLSTATE class 08), of what the
// server lacks or does now, and of proxies, which have numbers from 9000 and those of clients (2000 to
// 2999).
func isAway(e *mysql.MySQLError) bool {
	switch e.Number {
	case 1021, 1037, 1038, 1041, 1114: // disk, memory, a table in memory
		return true
	case 1040, 1053, 1129, 1130, 1158, 1159, 1160, 1161, 1203, 1213, 1226, 1927, 3159: // connections, shutdown, deadlock
		return true
	case 1047, 3032, 4031: // a node that is being synchronized, offline mode, a session that was idle
		return true
	}
	const tooLarge = 1153 // a packet: fewer keys may fit
	return string(e.SQLState[:2]) == "08" && e.Number != tooLarge || e.Number >= 2000 && e.Number < 3000 ||
		e.Number >= 9000 && e.Number < 10_000
}

// ofTexts are the errors of preparing a statement: syntax,
// tables, columns, functions, privileges.
var ofTexts = []uint16{1044, 1046, 1049, 1051, 1052, 1054, 1055, 1064, 1066, 1109, 1140, 1142, 1143, 1146,
	1149, 1222, 1247, 1248, 1305, 1318, 1370, 1582}

var atLine = regexp.MustCompile(`at line (\d+)$`)

func lineOf(message string) int {
	found := atLine.FindStringSubmatch(message)
	if found == nil {
		return 0
	}
	line, _ := strconv.Atoi(found[1])
	return line
}
