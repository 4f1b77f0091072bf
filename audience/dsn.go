package audience

import (
	"crypto/tls"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"lemma"
)

// The kinds of data source. MySQL includes MariaDB.
const (
	Postgres = "postgres"
	MySQL    = "mysql"
)

// target has the only parts of a DSN that are used: address and login. Other parts,
// such as files, sockets, further hosts and session settings, are refused by the
// parser.
type target struct {
	kind     string
	host     string // empty with socket
	port     uint16
	socket   string // directory (Postgres) or file (MySQL) of a unix socket
	database string
	user     string
	password string
	tls      string // disable, prefer, require or verify-full, as Postgres means them
}

// Parameters that a DSN may have. Those without a value are ignored: they are common and have no effect here.
var (
	postgresParameters = []string{"sslmode", "host", "port", "connect_timeout", "application_name", "channel_binding"}
	mysqlParameters    = []string{"tls", "charset", "collation", "parseTime", "loc", "timeout", "readTimeout", "writeTimeout"}
	mysqlTLS           = map[string]string{"": "prefer", "preferred": "prefer", "false": "disable", "skip-verify": "require",
		"true": "verify-full"}
)

func badDSN(format string, args ...any) error {
	return lemma.Fault("/dsn", "dsn_invalid", format, args...)
}

// parseDSN reads a DSN. Its errors never contain it.
func parseDSN(kind, dsn string, o Options) (target, error) {
	var t target
	var err error
	switch {
	case strings.ContainsRune(dsn, 0) || len(dsn) > 4096:
		return t, badDSN("the DSN has a NUL or more than 4096 bytes")
	case kind == Postgres:
		t, err = parsePostgres(dsn)
	case kind == MySQL:
		t, err = parseMySQL(dsn)
	default:
		return t, lemma.Fault("/kind", "unknown_kind", "the kind is not one of %s, %s", Postgres, MySQL)
	}
	if err != nil {
		return t, err
	}
	t.kind = kind
	return t, t.check(o)
}

func parsePostgres(dsn string) (target, error) {
	u, err := parseURL(dsn, "postgres://user:password@host:5432/database", "postgres", "postgresql")
	if err != nil {
		return target{}, err
	}
	q, err := parameters(u.RawQuery, postgresParameters)
	if err != nil {
		return target{}, err
	}
	t, err := fromURL(u, "5432")
	if err != nil {
		return t, err
	}
	t.tls = q["sslmode"]
	if t.tls == "" {
		t.tls = "prefer"
	}
	return t, t.parseSocket(u, q)
}

// parseSocket reads the directory of a unix socket from the parameters host and port.
func (t *target) parseSocket(u *url.URL, q map[string]string) error {
	socket, given := q["host"]
	if given && (u.Host != "" || !path.IsAbs(socket)) {
		return badDSN("the host belongs before the database, not into the parameters")
	}
	if q["port"] == "" {
		t.socket = socket
		return nil
	}
	port, err := strconv.ParseUint(q["port"], 10, 16)
	if err != nil || !given {
		return badDSN("the port belongs behind the host, not into the parameters")
	}
	t.socket, t.port = socket, uint16(port)
	return nil
}

func parseMySQL(dsn string) (target, error) {
	const example = "mysql://user:password@host:3306/database"
	if !strings.Contains(dsn, "://") {
		return parseDriverDSN(dsn)
	}
	u, err := parseURL(dsn, example, "mysql", "mariadb")
	if err != nil {
		return target{}, err
	}
	q, err := parameters(u.RawQuery, mysqlParameters)
	if err != nil {
		return target{}, err
	}
	t, err := fromURL(u, "3306")
	t.tls = mysqlTLS[q["tls"]]
	return t, err
}

// parseDriverDSN reads user:password@tcp(host:3306)/database, the form of the Go
// driver. The driver's parser gets it without parameters.
func parseDriverDSN(dsn string) (target, error) {
	slash := strings.LastIndexByte(dsn, '/')
	head, query, _ := strings.Cut(dsn[slash+1:], "?")
	q, err := parameters(query, mysqlParameters)
	if err != nil {
		return target{}, err
	}
	c, err := mysql.ParseDSN(dsn[:slash+1] + head)
	if err != nil {
		return target{}, badDSN("the DSN cannot be read; write it as mysql://user:password@host:3306/database")
	}
	t := target{user: c.User, password: c.Passwd, database: c.DBName, tls: mysqlTLS[q["tls"]]}
	switch c.Net {
	case "unix":
		t.socket = c.Addr
		return t, nil
	case "tcp":
		return t, t.parseHostPort(c.Addr)
	}
	return t, badDSN("the DSN's network is not tcp")
}

func (t *target) parseHostPort(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return badDSN("the DSN has no host and port")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return badDSN("the port is not a number up to 65535")
	}
	t.host, t.port = host, uint16(n)
	return nil
}

func parseURL(dsn, example string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(dsn)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.Opaque != "" {
		return nil, badDSN("the DSN cannot be read; write it as %s, with special characters of the password percent-encoded", example)
	}
	if u.Fragment != "" || strings.HasSuffix(dsn, "#") {
		return nil, badDSN("the DSN has a #; percent-encode it as %%23")
	}
	return u, nil
}

// parameters reads a query string of allowed names, each at most once.
func parameters(query string, allowed []string) (map[string]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, badDSN("the DSN's parameters cannot be read")
	}
	q := make(map[string]string, len(values))
	for name, v := range values {
		if !slices.Contains(allowed, name) {
			return nil,
				badDSN("the DSN's parameter %q is not allowed; the allowed ones are %s", printable(name), strings.Join(allowed, ", "))
		}
		if len(v) > 1 {
			return nil, badDSN("the DSN's parameter %q is there twice", name)
		}
		q[name] = v[0]
	}
	return q, nil
}

func fromURL(u *url.URL, defaultPort string) (target, error) {
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	t := target{user: u.User.Username(), database: strings.TrimPrefix(u.Path, "/")}
	t.password, _ = u.User.Password()
	if u.Host == "" {
		n, _ := strconv.ParseUint(port, 10, 16)
		t.port = uint16(n)
		return t, nil
	}
	return t, t.parseHostPort(net.JoinHostPort(u.Hostname(), port))
}

// check checks a target before it is saved. The addresses of its host are checked
// each time it is dialled.
func (t target) check(o Options) error {
	switch {
	case t.socket != "" && !o.AllowUnix:
		return badDSN("the DSN names a unix socket; name a host")
	case t.socket != "" && !path.IsAbs(t.socket):
		return badDSN("the DSN's socket is not an absolute path")
	case t.socket == "" && t.host == "":
		return badDSN("the DSN names no host")
	case t.socket == "" && !plainHost(t.host):
		return badDSN("the DSN's host is not one host name or address")
	case t.user == "":
		return badDSN("the DSN names no user")
	case t.database == "" || strings.ContainsAny(t.database, "/\x00"):
		return badDSN("the DSN names no database, or not one")
	case strings.ContainsRune(t.user+t.password, 0):
		return badDSN("the DSN's user or password has a NUL")
	case !slices.Contains([]string{"disable", "prefer", "require", "verify-full"}, t.tls):
		return badDSN("the DSN's TLS mode is not supported; use %s", tlsModes(t.kind))
	}
	return o.checkLiteral(t.host)
}

// checkLiteral checks a host that is an IP address before it is saved.
func (o Options) checkLiteral(host string) error {
	ip, err := netip.ParseAddr(host)
	if err != nil || o.checkAddress(ip) == nil {
		return nil //nolint:nilerr // a name, which is checked when it is dialled
	}
	return badDSN("the DSN's host is an address that may not be dialled")
}

func tlsModes(kind string) string {
	if kind == MySQL {
		return "tls=false, preferred, skip-verify or true"
	}
	return "sslmode=disable, prefer, require or verify-full"
}

func plainHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Zone() == ""
	}
	for _, c := range []byte(host) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return len(host) <= 253
}

// String is the address, without user and password.
func (t target) String() string {
	if t.socket != "" {
		return t.socket + "/" + t.database
	}
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))) + "/" + t.database
}

func (t target) socketFile() string {
	if t.kind == Postgres {
		return path.Join(t.socket, ".s.PGSQL."+strconv.Itoa(int(t.port)))
	}
	return t.socket
}

// tlsConfig is nil if the connection is not encrypted.
func (t target) tlsConfig() *tls.Config {
	if t.tls == "disable" || t.socket != "" {
		return nil
	}
	skip := t.tls != "verify-full"
	return &tls.Config{ServerName: t.host, MinVersion: tls.VersionTLS12, InsecureSkipVerify: skip} //nolint:gosec // require does not verify
}

// protection is the TLS mode that is stored with the encrypted DSN.
func (t target) protection() string {
	if t.socket != "" {
		return "unix"
	}
	return t.tls
}

// AllWarnings returns the warnings about the connection, and those of the last test.
func (s Source) AllWarnings() []string { return append(s.connectionWarnings(), s.RoleWarnings...) }

// connectionWarnings returns the warnings about TLS. A source on this machine has none.
func (s Source) connectionWarnings() []string {
	address, _, _ := strings.Cut(s.Address, "/")
	host, _, _ := net.SplitHostPort(address)
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	use := "use sslmode=verify-full in the DSN"
	if s.Kind == MySQL {
		use = "use tls=true in the DSN"
	}
	switch s.TLS {
	case "disable":
		return []string{"the connection is not encrypted; " + use}
	case "prefer":
		return []string{"the connection may be unencrypted, and the server's certificate is not verified; " + use}
	case "require":
		return []string{"the server's certificate is not verified, so the connection can be intercepted; " + use}
	}
	return nil
}
