package audience

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"lemma"
)

// mysqlConn is what the driver's connections can do. They are used without
// database/sql, which would keep them in a pool.
type mysqlConn interface {
	driver.Conn
	driver.QueryerContext
	driver.ExecerContext
	driver.ConnPrepareContext
}

type mysqlSession struct {
	connector driver.Connector
	conn      mysqlConn
	meter     *meter
	id        string // of the connection, as the server counts them
	version   string
	local     bool // over a socket: nobody listens
	tls       bool
	reading   bool              // a result was begun and not read to its end
	collation string            // of the keys of people, once somebody asked
	kinds     map[string]string // of key columns that were looked up by, as the server names types
}

// mysqlConfig is built from nothing but the target: no file may be sent to the
// server, one statement goes at a time, no password in clear.
func (a *Audiences) mysqlConfig(t target) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName, c.Net = t.user, t.password, t.database, "tcp"
	c.Addr = net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
	c.TLS, c.AllowFallbackToPlaintext = t.tlsConfig(), t.tls == "prefer"
	c.Timeout, c.Logger, c.Collation = a.options.ConnectTimeout, &mysql.NopLogger{}, "utf8mb4_general_ci"
	c.AllowAllFiles, c.MultiStatements, c.AllowCleartextPasswords, c.AllowOldPasswords = false, false, false, false
	if t.socket != "" {
		c.Net, c.Addr = "unix", t.socket
	}
	return c
}

func (a *Audiences) connectMySQL(ctx context.Context, t target, s span) (_ session, err error) {
	c := a.mysqlConfig(t)
	m := &mysqlSession{local: t.socket != "", kinds: map[string]string{}}
	c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := a.dial(ctx, t)
		if err != nil {
			return nil, err
		}
		m.meter = conn
		return conn, nil
	}
	if m.connector, err = mysql.NewConnector(c); err != nil {
		return nil, fmt.Errorf("configure mysql client: %w", err)
	}
	conn, err := m.connector.Connect(ctx)
	if err != nil {
		return nil, m.fault(err)
	}
	m.conn = conn.(mysqlConn)
	if err := m.begin(ctx, s); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// begin bounds the session and opens its first transaction. The SQL mode is
// fixed, because the meaning of quotes and backslashes hangs on it. Texts that
// a query makes (of numbers, say) have the collation of the database's own, so
// that the two compare.
func (m *mysqlSession) begin(ctx context.Context, s span) error {
	rows, err := m.query(ctx, "select connection_id(), version(), (select variable_value from information_schema.session_status where variable_name = 'Ssl_cipher')")
	if err != nil {
		rows, err = m.query(ctx, "select connection_id(), version(), ''") // MySQL 8 keeps the status elsewhere
	}
	if err != nil {
		return err
	}
	m.id, m.version, m.tls = rows[0][0], rows[0][1], rows[0][2] != ""
	longest := fmt.Sprintf("max_execution_time = %d", s.total.Milliseconds())
	if m.isMariaDB() {
		longest = fmt.Sprintf("max_statement_time = %.3f", s.total.Seconds())
	}
	err = m.exec(ctx,
		"set collation_connection = if(@@collation_database like 'utf8mb4\\_%', @@collation_database, @@collation_connection)",
		"set session sql_mode = 'STRICT_TRANS_TABLES', session time_zone = '+00:00', session lock_wait_timeout = 10, session net_write_timeout = 600, session "+longest,
		"set session transaction isolation level repeatable read, read only")
	if err != nil {
		return err
	}
	return m.again(ctx)
}

// again needs no more than this: what begin set is the session's, and a query
// cannot change it.
func (m *mysqlSession) again(ctx context.Context) error {
	return m.exec(ctx, "start transaction with consistent snapshot, read only")
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

// query runs one of our own statements and reads all of its answer.
func (m *mysqlSession) query(ctx context.Context, statement string) ([][]string, error) {
	c, err := m.start(ctx, statement)
	if err != nil {
		return nil, err
	}
	defer c.close()
	values := make([][]byte, len(c.raw))
	var all [][]string
	for {
		more, err := c.next(values)
		if err != nil || !more {
			return all, err
		}
		row := make([]string, len(values))
		for i, v := range values {
			row[i] = string(v)
		}
		if all = append(all, row); len(all) > maxSchemaColumns {
			m.meter.Close()
			return nil, overLimit("the source's catalog has too many rows")
		}
	}
}

func (m *mysqlSession) start(ctx context.Context, statement string) (*mysqlCursor, error) {
	m.meter.progress()
	m.reading = true
	rows, err := m.conn.QueryContext(ctx, statement, nil)
	if err != nil {
		return nil, m.fault(err)
	}
	n := len(rows.Columns())
	return &mysqlCursor{session: m, rows: rows, raw: make([]driver.Value, n)}, nil
}

// describe prepares the text alone, which runs nothing, and then reads no rows
// of it wrapped, since the driver shows columns of results only.
func (m *mysqlSession) describe(ctx context.Context, sql string) ([]Column, error) {
	alone, err := m.conn.PrepareContext(ctx, sql)
	if err != nil {
		return nil, m.fault(err)
	}
	parameters := alone.NumInput()
	alone.Close()
	if parameters > 0 {
		return nil, badQuery(0, 0, "the query has a parameter (?); an audience has none")
	}
	c, err := m.start(ctx, wrapHead+sql+wrapTail+" limit 0")
	if err != nil {
		return nil, err
	}
	defer c.close()
	columns := make([]Column, len(c.raw))
	for i, name := range c.rows.Columns() {
		typed := c.rows.(driver.RowsColumnTypeDatabaseTypeName)
		columns[i] = Column{Name: name, Type: mysqlType(typed.ColumnTypeDatabaseTypeName(i))}
	}
	return columns, nil
}

func mysqlType(name string) Type {
	switch name = strings.TrimPrefix(strings.ToUpper(name), "UNSIGNED "); name {
	case "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "YEAR", "BIT":
		return Integer
	case "DECIMAL", "FLOAT", "DOUBLE":
		return Number
	case "VARCHAR", "CHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET":
		return Text
	case "DATETIME", "TIMESTAMP":
		return Timestamp
	case "DATE":
		return Date
	case "JSON":
		return JSON
	}
	return Other
}

// estimate multiplies what the planner expects of each table of the outermost
// select: rough, as all it knows is.
func (m *mysqlSession) estimate(ctx context.Context, sql string) (int64, error) {
	c, err := m.start(ctx, "explain "+wrapHead+sql+wrapTail)
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
select table_schema, table_name, column_name, upper(data_type), is_nullable
  from information_schema.columns
 where table_schema not in ('mysql', 'information_schema', 'performance_schema', 'sys')
 order by 1, 2, ordinal_position
 limit 20000`

func (m *mysqlSession) tables(ctx context.Context) ([]Table, error) {
	rows, err := m.query(ctx, mysqlTables)
	var list tableList
	for _, r := range rows {
		list.add(r[0], r[1], TableColumn{r[2], mysqlType(r[3]), strings.EqualFold(r[4], "yes")})
	}
	return list, err
}

func (m *mysqlSession) open(ctx context.Context, sql string, columns []string, limit int) (cursor, error) {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = "audience.`" + strings.ReplaceAll(c, "`", "``") + "`"
	}
	text := "select " + strings.Join(quoted, ", ") + " from (\n" + sql + wrapTail
	if limit > 0 {
		text += " limit " + strconv.Itoa(limit)
	}
	c, err := m.start(ctx, text)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// close cuts the connection: reading the rest of a result politely could take
// longer than what it was cut for. The server would notice only at the next
// row, so a query that was given up is stopped from another connection.
func (m *mysqlSession) close() {
	m.meter.Close()
	if m.reading && m.id != "" {
		ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		m.kill(ctx)
	}
}

const killTimeout = 2 * time.Second

// kill does what it can: the server's own time limit is behind it.
func (m *mysqlSession) kill(ctx context.Context) {
	conn, err := m.connector.Connect(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	conn.(mysqlConn).ExecContext(ctx, "kill "+m.id, nil)
}

// mysqlCursor is a result as the driver streams it, row by row off the wire.
type mysqlCursor struct {
	session *mysqlSession
	rows    driver.Rows
	raw     []driver.Value
	scratch []byte // text forms of the numbers of one row
	count   int
}

func (c *mysqlCursor) next(dst [][]byte) (bool, error) {
	c.session.meter.progress()
	err := c.rows.Next(c.raw)
	if err == io.EOF {
		c.session.reading = false
		return false, nil
	}
	if err != nil {
		return false, c.session.fault(err)
	}
	if len(dst) != len(c.raw) {
		return false, changed("the source sent rows of %d columns instead of %d", len(c.raw), len(dst))
	}
	c.count++
	c.scratch = c.scratch[:0]
	for i, v := range c.raw {
		dst[i] = c.text(v)
	}
	return true, nil
}

// pause comes every thousand rows: the server sends on until the network is
// full, and waits then for up to net_write_timeout.
func (c *mysqlCursor) pause() bool { return c.count%1000 == 0 }

// close reads what is left of a short result.
func (c *mysqlCursor) close() {
	if c.rows.Close() == nil {
		c.session.reading = false
	}
}

// text gives numbers back their digits; what grew scratch stays valid in the old array.
func (c *mysqlCursor) text(v driver.Value) []byte {
	from := len(c.scratch)
	switch v := v.(type) {
	case nil:
		return nil
	case []byte:
		return v
	case int64:
		c.scratch = strconv.AppendInt(c.scratch, v, 10)
	case uint64:
		c.scratch = strconv.AppendUint(c.scratch, v, 10)
	case float32:
		c.scratch = strconv.AppendFloat(c.scratch, float64(v), 'g', -1, 32)
	case float64:
		c.scratch = strconv.AppendFloat(c.scratch, v, 'g', -1, 64)
	case string:
		c.scratch = append(c.scratch, v...)
	case time.Time:
		c.scratch = v.AppendFormat(c.scratch, "2006-01-02 15:04:05.999999999")
	default:
		c.scratch = fmt.Append(c.scratch, v)
	}
	return c.scratch[from:len(c.scratch):len(c.scratch)]
}

// fault turns an error of the driver into one of ours.
func (m *mysqlSession) fault(err error) *lemma.Error {
	var said *mysql.MySQLError
	if !errors.As(err, &said) {
		return broken(m.meter, err)
	}
	message := spoken(said.Message)
	switch said.Number {
	case 1044, 1045, 1049, 1698, 1820, 1862, 3118: // login, database, expired password, locked account
		return refused(said, "the source refused the login or has no such database")
	case 1317, 3024, 1969, 1205, 1028: // interrupted, time limits of MySQL and MariaDB, lock wait
		return timedOut(said, "the source stopped the query at its time limit")
	case 1040, 1053, 1129, 1130, 1158, 1159, 1160, 1161, 1203, 1213, 1226, 2006, 2013, 1927, 3159:
		return unavailable(said, "the source failed: "+message)
	case 1792:
		return badQuery(0, 0, "the query writes: %s", message)
	}
	e := badQuery(lineOf(message), 0, "%s", message)
	e.Cause = said
	return e
}

var atLine = regexp.MustCompile(`at line (\d+)$`)

func lineOf(message string) int {
	found := atLine.FindStringSubmatch(message)
	if found == nil {
		return 0
	}
	line, _ := strconv.Atoi(found[1])
	return line
}
