package wire

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
	"github.com/google/uuid"

	"lemma"
	"lemma/audience/sqltext"
	"lemma/dial"
)

// Target has the only parts of a DSN that are used: address and login. Other parts,
// such as files, sockets, further hosts and session settings, are refused by the
// parser.
type Target struct {
	Kind     string
	Host     string // empty with socket
	Port     uint16
	Socket   string // directory (Postgres) or file (MySQL) of a unix socket
	Database string
	User     string
	Password string
	TLS      string // disable, prefer, require or verify-full, as Postgres means them

	Workspace uuid.UUID // for which it is read
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

// Parse reads a DSN. Its errors never contain it.
func Parse(kind, dsn string, r Rules) (Target, error) {
	var t Target
	var err error
	switch {
	case strings.ContainsRune(dsn, 0) || len(dsn) > 4096:
		return t, badDSN("the DSN has a NUL or more than 4096 bytes")
	case kind == sqltext.Postgres:
		t, err = parsePostgres(dsn)
	case kind == sqltext.MySQL:
		t, err = parseMySQL(dsn)
	default:
		return t, lemma.Fault("/kind", "unknown_kind", "the kind is not one of %s, %s", sqltext.Postgres, sqltext.MySQL)
	}
	if err != nil {
		return t, err
	}
	t.Kind = kind
	return t, t.check(r)
}

func parsePostgres(dsn string) (Target, error) {
	u, err := parseURL(dsn, "postgres://user:password@host:5432/database", "postgres", "postgresql")
	if err != nil {
		return Target{}, err
	}
	q, err := parameters(u.RawQuery, postgresParameters)
	if err != nil {
		return Target{}, err
	}
	t, err := fromURL(u, "5432")
	if err != nil {
		return t, err
	}
	t.TLS = q["sslmode"]
	if t.TLS == "" {
		t.TLS = "prefer"
	}
	return t, t.parseSocket(u, q)
}

// parseSocket reads the directory of a unix socket from the parameters host and port.
func (t *Target) parseSocket(u *url.URL, q map[string]string) error {
	socket, given := q["host"]
	if given && (u.Host != "" || !path.IsAbs(socket)) {
		return badDSN("the host belongs before the database, not into the parameters")
	}
	if q["port"] == "" {
		t.Socket = socket
		return nil
	}
	port, err := strconv.ParseUint(q["port"], 10, 16)
	if err != nil || !given {
		return badDSN("the port belongs behind the host, not into the parameters")
	}
	t.Socket, t.Port = socket, uint16(port)
	return nil
}

func parseMySQL(dsn string) (Target, error) {
	const example = "mysql://user:password@host:3306/database"
	if !strings.Contains(dsn, "://") {
		return parseDriverDSN(dsn)
	}
	u, err := parseURL(dsn, example, "mysql", "mariadb")
	if err != nil {
		return Target{}, err
	}
	q, err := parameters(u.RawQuery, mysqlParameters)
	if err != nil {
		return Target{}, err
	}
	t, err := fromURL(u, "3306")
	t.TLS = mysqlTLS[q["tls"]]
	return t, err
}

// parseDriverDSN reads user:password@tcp(host:3306)/database, the form of the Go
// driver. The driver's parser gets it without parameters.
func parseDriverDSN(dsn string) (Target, error) {
	slash := strings.LastIndexByte(dsn, '/')
	head, query, _ := strings.Cut(dsn[slash+1:], "?")
	q, err := parameters(query, mysqlParameters)
	if err != nil {
		return Target{}, err
	}
	c, err := mysql.ParseDSN(dsn[:slash+1] + head)
	if err != nil {
		return Target{}, badDSN("the DSN cannot be read; write it as mysql://user:password@host:3306/database")
	}
	t := Target{User: c.User, Password: c.Passwd, Database: c.DBName, TLS: mysqlTLS[q["tls"]]}
	switch c.Net {
	case "unix":
		t.Socket = c.Addr
		return t, nil
	case "tcp":
		return t, t.parseHostPort(c.Addr)
	}
	return t, badDSN("the DSN's network is not tcp")
}

func (t *Target) parseHostPort(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return badDSN("the DSN has no host and port")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return badDSN("the port is not a number up to 65535")
	}
	t.Host, t.Port = host, uint16(n)
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
				badDSN("the DSN's parameter %q is not allowed; the allowed ones are %s", sqltext.Printable(name), strings.Join(allowed, ", "))
		}
		if len(v) > 1 {
			return nil, badDSN("the DSN's parameter %q is there twice", name)
		}
		q[name] = v[0]
	}
	return q, nil
}

func fromURL(u *url.URL, defaultPort string) (Target, error) {
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	t := Target{User: u.User.Username(), Database: strings.TrimPrefix(u.Path, "/")}
	t.Password, _ = u.User.Password()
	if u.Host == "" {
		n, _ := strconv.ParseUint(port, 10, 16)
		t.Port = uint16(n)
		return t, nil
	}
	return t, t.parseHostPort(net.JoinHostPort(u.Hostname(), port))
}

// check checks a target before it is saved. The addresses of its host are checked
// each time it is dialled.
func (t Target) check(r Rules) error {
	switch {
	case t.Socket != "" && !r.AllowUnix:
		return badDSN("the DSN names a unix socket; name a host")
	case t.Socket != "" && !path.IsAbs(t.Socket):
		return badDSN("the DSN's socket is not an absolute path")
	case t.Socket == "" && t.Host == "":
		return badDSN("the DSN names no host")
	case t.Socket == "" && !plainHost(t.Host):
		return badDSN("the DSN's host is not one host name or address")
	case t.User == "":
		return badDSN("the DSN names no user")
	case t.Database == "" || strings.ContainsAny(t.Database, "/\x00"):
		return badDSN("the DSN names no database, or not one")
	case strings.ContainsRune(t.User+t.Password, 0):
		return badDSN("the DSN's user or password has a NUL")
	case !slices.Contains([]string{"disable", "prefer", "require", "verify-full"}, t.TLS):
		return badDSN("the DSN's TLS mode is not supported; use %s", tlsModes(t.Kind))
	}
	return r.checkLiteral(t.Host)
}

// checkLiteral checks a host that is an IP address before it is saved.
func (r Rules) checkLiteral(host string) error {
	ip, err := netip.ParseAddr(host)
	if err != nil || r.dialer().Allowed(ip) {
		return nil //nolint:nilerr // a name, which is checked when it is dialled
	}
	return badDSN("the DSN's host is an address that may not be dialled")
}

func tlsModes(kind string) string {
	if kind == sqltext.MySQL {
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
func (t Target) String() string {
	if t.Socket != "" {
		return t.Socket + "/" + t.Database
	}
	return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))) + "/" + t.Database
}

func (t Target) socketFile() string {
	if t.Kind == sqltext.Postgres {
		return path.Join(t.Socket, ".s.PGSQL."+strconv.Itoa(int(t.Port)))
	}
	return t.Socket
}

// TLSConfig is nil if the connection is not encrypted.
func (t Target) TLSConfig() *tls.Config {
	if t.TLS == "disable" || t.Socket != "" {
		return nil
	}
	if t.TLS == "verify-full" {
		return dial.TLS(t.Workspace, t.Host, nil)
	}
	return &tls.Config{ServerName: t.Host, MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // require does not verify
}

// Protection is the TLS mode that is stored with the encrypted DSN.
func (t Target) Protection() string {
	if t.Socket != "" {
		return "unix"
	}
	return t.TLS
}
