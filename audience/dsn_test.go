package audience

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"lemma"
)

func TestDSNsThatAreTaken(t *testing.T) {
	for _, c := range []struct {
		kind, dsn string
		options   Options
		want      target
		address   string
	}{
		{Postgres, "postgres://u:p%40ss@db.example.com/shop", Options{},
			target{Postgres, "db.example.com", 5432, "", "shop", "u", "p@ss", "prefer"}, "db.example.com:5432/shop"},
		{Postgres, "postgresql://u@db.example.com:6432/shop?sslmode=verify-full&connect_timeout=5", Options{},
			target{Postgres, "db.example.com", 6432, "", "shop", "u", "", "verify-full"}, "db.example.com:6432/shop"},
		{Postgres, "postgres://u@[2a00::1]:5433/shop", Options{}, target{Postgres, "2a00::1", 5433, "", "shop", "u", "", "prefer"},
			"[2a00::1]:5433/shop"},
		{Postgres, "postgres://u@/shop?host=/run/pg&port=5499", dev, target{Postgres, "", 5499, "/run/pg", "shop", "u", "", "prefer"},
			"/run/pg/shop"},
		{MySQL, "mysql://u:p@db.example.com/shop", Options{}, target{MySQL, "db.example.com", 3306, "", "shop", "u", "p", "prefer"},
			"db.example.com:3306/shop"},
		{MySQL, "mariadb://u:p@db.example.com:3307/shop?tls=true", Options{},
			target{MySQL, "db.example.com", 3307, "", "shop", "u", "p", "verify-full"}, "db.example.com:3307/shop"},
		{MySQL, "u:p@/x@tcp(db.example.com:3306)/shop?parseTime=true&loc=UTC&tls=false", Options{},
			target{MySQL, "db.example.com", 3306, "", "shop", "u", "p@/x", "disable"}, "db.example.com:3306/shop"},
		{MySQL, "u@unix(/run/mysqld.sock)/shop", dev, target{MySQL, "", 0, "/run/mysqld.sock", "shop", "u", "", "prefer"},
			"/run/mysqld.sock/shop"},
	} {
		got, err := parseDSN(c.kind, c.dsn, c.options)
		if err != nil || got != c.want || got.String() != c.address {
			t.Errorf("%s: %+v %s, %v", c.dsn, got, got, err)
		}
	}
}

func TestDSNsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, kind, dsn string }{
		{"nothing", Postgres, ""},
		{"not a DSN", Postgres, "canary"},
		{"words and values", Postgres, "host=db.example.com user=u password=canary dbname=shop"},
		{"another scheme", Postgres, "http://u:canary@db.example.com/shop"},
		{"mysql as postgres", Postgres, "mysql://u:canary@db.example.com/shop"},
		{"no host", Postgres, "postgres://u:canary@/shop"},
		{"no user", Postgres, "postgres://db.example.com/shop"},
		{"no database", Postgres, "postgres://u:canary@db.example.com"},
		{"a path", Postgres, "postgres://u:canary@db.example.com/shop/more"},
		{"several hosts", Postgres, "postgres://u:canary@a.example.com,b.example.com/shop"},
		{"several hosts and ports", Postgres, "postgres://u:canary@a.example.com:5432,b.example.com:5432/shop"},
		{"socket", Postgres, "postgres://u:canary@/shop?host=/var/run/postgresql"},
		{"socket as host", Postgres, "postgres://u:canary@%2Fvar%2Frun/shop"},
		{"abstract socket", Postgres, "postgres://u:canary@/shop?host=@x"},
		{"host twice", Postgres, "postgres://u:canary@db.example.com/shop?host=localhost"},
		{"hostaddr", Postgres, "postgres://u:canary@db.example.com/shop?hostaddr=127.0.0.1"},
		{"port in the parameters", Postgres, "postgres://u:canary@db.example.com/shop?port=22"},
		{"service", Postgres, "postgres://u:canary@db.example.com/shop?service=other"},
		{"service file", Postgres, "postgres://u:canary@db.example.com/shop?servicefile=/etc/passwd"},
		{"password file", Postgres, "postgres://u:canary@db.example.com/shop?passfile=/etc/passwd"},
		{"root certificate", Postgres, "postgres://u:canary@db.example.com/shop?sslrootcert=/etc/passwd"},
		{"certificate", Postgres, "postgres://u:canary@db.example.com/shop?sslcert=/etc/passwd&sslkey=/etc/shadow"},
		{"options", Postgres, "postgres://u:canary@db.example.com/shop?options=-c%20statement_timeout%3D0"},
		{"setting", Postgres, "postgres://u:canary@db.example.com/shop?statement_timeout=0"},
		{"search path", Postgres, "postgres://u:canary@db.example.com/shop?search_path=evil"},
		{"user in the parameters", Postgres, "postgres://u:canary@db.example.com/shop?user=postgres"},
		{"database in the parameters", Postgres, "postgres://u:canary@db.example.com/shop?dbname=host%3D127.0.0.1"},
		{"session attributes", Postgres, "postgres://u:canary@db.example.com/shop?target_session_attrs=read-write"},
		{"TLS mode twice", Postgres, "postgres://u:canary@db.example.com/shop?sslmode=require&sslmode=disable"},
		{"TLS mode unknown", Postgres, "postgres://u:canary@db.example.com/shop?sslmode=maybe"},
		{"verify-ca", Postgres, "postgres://u:canary@db.example.com/shop?sslmode=verify-ca"},
		{"fragment", Postgres, "postgres://u:canary@db.example.com/shop#x"},
		{"zone", Postgres, "postgres://u:canary@[fe80::1%25eth0]/shop"},
		{"bad port", Postgres, "postgres://u:canary@db.example.com:99999/shop"},
		{"line break", Postgres, "postgres://u:canary@db.example.com\n/shop"},
		{"NUL", Postgres, "postgres://u:canary%00@db.example.com/shop"},
		{"loopback", Postgres, "postgres://u:canary@127.0.0.1/shop"},
		{"mapped loopback", Postgres, "postgres://u:canary@[::ffff:127.0.0.1]/shop"},
		{"all files", MySQL, "mysql://u:canary@db.example.com/shop?allowAllFiles=true"},
		{"several statements", MySQL, "mysql://u:canary@db.example.com/shop?multiStatements=true"},
		{"all files, driver form", MySQL, "u:canary@tcp(db.example.com)/shop?allowAllFiles=true"},
		{"several statements, driver form", MySQL, "u:canary@tcp(db.example.com)/shop?multiStatements=true"},
		{"clear password", MySQL, "mysql://u:canary@db.example.com/shop?allowCleartextPasswords=true"},
		{"old passwords", MySQL, "mysql://u:canary@db.example.com/shop?allowOldPasswords=true"},
		{"server key", MySQL, "mysql://u:canary@db.example.com/shop?serverPubKey=x"},
		{"variable", MySQL, "mysql://u:canary@db.example.com/shop?sql_mode=x"},
		{"init", MySQL, "mysql://u:canary@db.example.com/shop?max_statement_time=0"},
		{"named TLS", MySQL, "mysql://u:canary@db.example.com/shop?tls=custom"},
		{"mysql socket", MySQL, "u:canary@unix(/run/mysqld.sock)/shop"},
		{"default network", MySQL, "u:canary@/shop"},
		{"own network", MySQL, "u:canary@evil(db.example.com:3306)/shop"},
		{"mysql loopback", MySQL, "u:canary@tcp(127.0.0.1:3306)/shop"},
		{"no database", MySQL, "mysql://u:canary@db.example.com/"},
	} {
		_, err := parseDSN(c.kind, c.dsn, Options{})
		if got := codeOf(err); got != "invalid /dsn" {
			t.Errorf("%s: %s", c.name, got)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the error shows the password: %v", c.name, err)
		}
	}
	_, err := parseDSN("oracle", "oracle://x", Options{})
	wantCode(t, err, "invalid /kind")
}

// TestClientIgnoresItsSurroundings sets what libpq would read.
func TestClientIgnoresItsSurroundings(t *testing.T) {
	for name, value := range map[string]string{"PGHOST": "127.0.0.1", "PGUSER": "evil", "PGPASSWORD": "evil", "PGOPTIONS": "-c x=y",
		"PGSSLMODE":     "verify-full",
		"PGSSLROOTCERT": "/nowhere", "PGSSLCERT": "/nowhere", "PGSSLKEY": "/nowhere", "PGAPPNAME": "evil", "PGTZ": "evil",
		"PGREQUIREAUTH": "none"} {
		t.Setenv(name, value)
	}
	target, err := parseDSN(Postgres, "postgres://u@db.example.com/shop?sslmode=require", Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(nil, nil, Options{}).pgConfig(target)
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "db.example.com" || c.User != "u" || c.Password != "" || len(c.RuntimeParams) != 2 || c.RequireAuth != "" ||
		c.TLSConfig == nil || len(c.Fallbacks) != 0 {
		t.Errorf("%+v", c)
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{ // by default, and with AllowPrivate
		"8.8.8.8": "yes yes", "2a00:1450::1": "yes yes", "100.128.0.1": "yes yes", "172.32.0.1": "yes yes", "::ffff:8.8.8.8": "yes yes",
		"127.0.0.1": "no yes", "127.255.0.1": "no yes", "::1": "no yes", "10.1.2.3": "no yes", "172.16.0.1": "no yes",
		"172.31.255.255": "no yes",
		"192.168.1.1":    "no yes", "100.64.0.1": "no yes", "fd00::1": "no yes", "::ffff:10.0.0.1": "no yes", "::ffff:127.0.0.1": "no yes",
		"169.254.169.254": "no no", "::ffff:169.254.169.254": "no no", "fe80::1": "no no", "fe80::1%eth0": "no no",
		"100.100.100.200": "no no",
		"fd00:ec2::254":   "no no", "0.0.0.0": "no no", "0.1.2.3": "no no", "::": "no no", "224.0.0.1": "no no", "ff02::1": "no no",
		"255.255.255.255": "no no",
		"240.0.0.1":       "no no", "64:ff9b::7f00:1": "no no", "2002:7f00:1::": "no no", "2001:0:1::": "no no", "::127.0.0.1": "no no",
		"198.18.0.1": "no no",
		"192.0.2.1":  "no no", "2001:db8::1": "no no",
	} {
		ip := netip.MustParseAddr(text)
		got := yes(Options{}.checkAddress(ip)) + " " + yes(Options{AllowPrivate: true}.checkAddress(ip))
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func yes(err error) string {
	if err == nil {
		return "yes"
	}
	return "no"
}

// TestNamesAreCheckedWhenDialled has names that lead to forbidden addresses,
// at once, beside an allowed one, or only the second time.
func TestNamesAreCheckedWhenDialled(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	reached := make(chan struct{}, 10)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			reached <- struct{}{}
			c.Close()
		}
	}()
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	asked := 0
	answers := map[string]func() []string{
		"inside.example.com":   func() []string { return []string{"127.0.0.1"} },
		"mixed.example.com":    func() []string { return []string{"127.0.0.1", "192.0.0.1", "8.8.8.8"} },
		"metadata.example.com": func() []string { return []string{"169.254.169.254"} },
		"rebind.example.com": func() []string {
			if asked++; asked == 1 {
				return []string{"169.254.169.254"}
			}
			return []string{"127.0.0.1"}
		},
	}
	a := New(nil, nil, Options{})
	a.resolve = func(_ context.Context, _, host string) (list []netip.Addr, err error) {
		for _, text := range answers[host]() {
			list = append(list, netip.MustParseAddr(text))
		}
		return list, nil
	}
	for host := range answers {
		_, err := a.checkedDial(t.Context(), host, port)
		wantCode(t, err, CodeRefused)
	}
	for _, odd := range []string{"2130706433", "0x7f.1", "127.1", "localhost", "localhost.", "017700000001"} {
		a := New(nil, nil, Options{})
		var known *lemma.Error
		if conn, err := a.checkedDial(t.Context(), odd, port); err == nil {
			conn.Close()
			t.Errorf("%s was dialled", odd)
		} else if errors.As(err, &known) && known.Code != CodeRefused {
			t.Errorf("%s: %v", odd, err)
		}
	}
	if len(reached) != 0 {
		t.Errorf("%d connections were made", len(reached))
	}
	_, err = New(nil, nil, dev).checkedDial(t.Context(), "127.0.0.1", 25)
	wantCode(t, err, CodeRefused)
	conn, err := New(nil, nil, dev).checkedDial(t.Context(), "localhost", port)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// A new DSN replaces the whole old one: no part of it, such as
// its password, is sent to the new server.
func TestAnotherDSNKeepsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	ctx := t.Context()
	made, err := b.CreateSource(ctx, b.Workspace, NewSource{ID: lemma.NewID(), Name: "shop", Kind: Postgres,
		DSN: "postgres://reader:hunter2@db.shop.example:5432/shop?sslmode=verify-full"})
	b.Must(err)
	other := "postgres://reader@db.evil.example:5432/shop"
	if _, err := b.UpdateSource(ctx, b.Workspace, made.ID, nil, SourcePatch{DSN: &other}); err != nil {
		t.Fatal(err)
	}
	opened, err := b.opened(ctx, b.Workspace, made.ID)
	if err != nil || opened.target.password != "" || opened.target.tls != "prefer" || opened.target.host != "db.evil.example" {
		t.Errorf("%+v, %v", opened.target, err)
	}
}
