package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/uuid"
	"lemma"

	"lemma/audience/sqltext"
)

var dev = Rules{AllowPrivate: true, AllowUnix: true}

// pointerOf returns the pointer of a fault.
func pointerOf(err error) string {
	var e *lemma.Error
	if !errors.As(err, &e) || len(e.Fields) != 1 {
		return fmt.Sprint(err)
	}
	return e.Fields[0].Pointer
}

func TestDSNsThatAreTaken(t *testing.T) {
	for _, c := range []struct {
		kind, dsn string
		rules     Rules
		want      Target
		address   string
	}{
		{sqltext.Postgres, "postgres://u:p%40ss@db.example.com/shop", Rules{},
			Target{sqltext.Postgres, "db.example.com", 5432, "", "shop", "u", "p@ss", "prefer", uuid.Nil}, "db.example.com:5432/shop"},
		{sqltext.Postgres, "postgresql://u@db.example.com:6432/shop?sslmode=verify-full&connect_timeout=5", Rules{},
			Target{sqltext.Postgres, "db.example.com", 6432, "", "shop", "u", "", "verify-full", uuid.Nil}, "db.example.com:6432/shop"},
		{sqltext.Postgres, "postgres://u@[2a00::1]:5433/shop", Rules{}, Target{sqltext.Postgres, "2a00::1", 5433, "", "shop", "u", "", "prefer",
			uuid.Nil},
			"[2a00::1]:5433/shop"},
		{sqltext.Postgres, "postgres://u@/shop?host=/run/pg&port=5499", dev, Target{sqltext.Postgres, "", 5499, "/run/pg", "shop", "u",
			"", "prefer",
			uuid.Nil},
			"/run/pg/shop"},
		{sqltext.MySQL, "mysql://u:p@db.example.com/shop", Rules{}, Target{sqltext.MySQL, "db.example.com", 3306, "", "shop", "u", "p", "prefer",
			uuid.Nil},
			"db.example.com:3306/shop"},
		{sqltext.MySQL, "mariadb://u:p@db.example.com:3307/shop?tls=true", Rules{},
			Target{sqltext.MySQL, "db.example.com", 3307, "", "shop", "u", "p", "verify-full", uuid.Nil}, "db.example.com:3307/shop"},
		{sqltext.MySQL, "u:p@/x@tcp(db.example.com:3306)/shop?parseTime=true&loc=UTC&tls=false", Rules{},
			Target{sqltext.MySQL, "db.example.com", 3306, "", "shop", "u", "p@/x", "disable", uuid.Nil}, "db.example.com:3306/shop"},
		{sqltext.MySQL, "u@unix(/run/mysqld.sock)/shop", dev, Target{sqltext.MySQL, "", 0, "/run/mysqld.sock", "shop", "u", "", "prefer",
			uuid.Nil},
			"/run/mysqld.sock/shop"},
	} {
		got, err := Parse(c.kind, c.dsn, c.rules)
		if err != nil || got != c.want || got.String() != c.address {
			t.Errorf("%s: %+v %s, %v", c.dsn, got, got, err)
		}
	}
}

func TestDSNsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, kind, dsn string }{
		{"nothing", sqltext.Postgres, ""},
		{"not a DSN", sqltext.Postgres, "canary"},
		{"words and values", sqltext.Postgres, "host=db.example.com user=u password=canary dbname=shop"},
		{"another scheme", sqltext.Postgres, "http://u:canary@db.example.com/shop"},
		{"mysql as postgres", sqltext.Postgres, "mysql://u:canary@db.example.com/shop"},
		{"no host", sqltext.Postgres, "postgres://u:canary@/shop"},
		{"no user", sqltext.Postgres, "postgres://db.example.com/shop"},
		{"no database", sqltext.Postgres, "postgres://u:canary@db.example.com"},
		{"a path", sqltext.Postgres, "postgres://u:canary@db.example.com/shop/more"},
		{"several hosts", sqltext.Postgres, "postgres://u:canary@a.example.com,b.example.com/shop"},
		{"several hosts and ports", sqltext.Postgres, "postgres://u:canary@a.example.com:5432,b.example.com:5432/shop"},
		{"socket", sqltext.Postgres, "postgres://u:canary@/shop?host=/var/run/postgresql"},
		{"socket as host", sqltext.Postgres, "postgres://u:canary@%2Fvar%2Frun/shop"},
		{"abstract socket", sqltext.Postgres, "postgres://u:canary@/shop?host=@x"},
		{"host twice", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?host=localhost"},
		{"hostaddr", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?hostaddr=127.0.0.1"},
		{"port in the parameters", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?port=22"},
		{"service", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?service=other"},
		{"service file", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?servicefile=/etc/passwd"},
		{"password file", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?passfile=/etc/passwd"},
		{"root certificate", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?sslrootcert=/etc/passwd"},
		{"certificate", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?sslcert=/etc/passwd&sslkey=/etc/shadow"},
		{"options", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?options=-c%20statement_timeout%3D0"},
		{"setting", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?statement_timeout=0"},
		{"search path", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?search_path=evil"},
		{"user in the parameters", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?user=postgres"},
		{"database in the parameters", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?dbname=host%3D127.0.0.1"},
		{"session attributes", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?target_session_attrs=read-write"},
		{"TLS mode twice", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?sslmode=require&sslmode=disable"},
		{"TLS mode unknown", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?sslmode=maybe"},
		{"verify-ca", sqltext.Postgres, "postgres://u:canary@db.example.com/shop?sslmode=verify-ca"},
		{"fragment", sqltext.Postgres, "postgres://u:canary@db.example.com/shop#x"},
		{"zone", sqltext.Postgres, "postgres://u:canary@[fe80::1%25eth0]/shop"},
		{"bad port", sqltext.Postgres, "postgres://u:canary@db.example.com:99999/shop"},
		{"line break", sqltext.Postgres, "postgres://u:canary@db.example.com\n/shop"},
		{"NUL", sqltext.Postgres, "postgres://u:canary%00@db.example.com/shop"},
		{"loopback", sqltext.Postgres, "postgres://u:canary@127.0.0.1/shop"},
		{"mapped loopback", sqltext.Postgres, "postgres://u:canary@[::ffff:127.0.0.1]/shop"},
		{"all files", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?allowAllFiles=true"},
		{"several statements", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?multiStatements=true"},
		{"all files, driver form", sqltext.MySQL, "u:canary@tcp(db.example.com)/shop?allowAllFiles=true"},
		{"several statements, driver form", sqltext.MySQL, "u:canary@tcp(db.example.com)/shop?multiStatements=true"},
		{"clear password", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?allowCleartextPasswords=true"},
		{"old passwords", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?allowOldPasswords=true"},
		{"server key", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?serverPubKey=x"},
		{"variable", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?sql_mode=x"},
		{"init", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?max_statement_time=0"},
		{"named TLS", sqltext.MySQL, "mysql://u:canary@db.example.com/shop?tls=custom"},
		{"mysql socket", sqltext.MySQL, "u:canary@unix(/run/mysqld.sock)/shop"},
		{"default network", sqltext.MySQL, "u:canary@/shop"},
		{"own network", sqltext.MySQL, "u:canary@evil(db.example.com:3306)/shop"},
		{"mysql loopback", sqltext.MySQL, "u:canary@tcp(127.0.0.1:3306)/shop"},
		{"no database", sqltext.MySQL, "mysql://u:canary@db.example.com/"},
	} {
		_, err := Parse(c.kind, c.dsn, Rules{})
		if got := pointerOf(err); got != "/dsn" {
			t.Errorf("%s: %s", c.name, got)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the error shows the password: %v", c.name, err)
		}
	}
	_, err := Parse("oracle", "oracle://x", Rules{})
	if got := pointerOf(err); got != "/kind" {
		t.Errorf("an unknown kind: %s", got)
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
		got := yes(Rules{}.dialer().Allowed(ip)) + " " + yes(Rules{AllowPrivate: true}.dialer().Allowed(ip))
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func yes(allowed bool) string {
	if allowed {
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
	r := Rules{Resolve: func(_ context.Context, _, host string) (list []netip.Addr, err error) {
		for _, text := range answers[host]() {
			list = append(list, netip.MustParseAddr(text))
		}
		return list, nil
	}}
	for host := range answers {
		if _, err := r.dialHost(t.Context(), host, port); !errors.As(err, new(Refusal)) {
			t.Errorf("%s: %v", host, err)
		}
	}
	for _, odd := range []string{"2130706433", "0x7f.1", "127.1", "localhost", "localhost.", "017700000001"} {
		if conn, err := (Rules{}).dialHost(t.Context(), odd, port); err == nil {
			conn.Close()
			t.Errorf("%s was dialled", odd)
		}
	}
	if len(reached) != 0 {
		t.Errorf("%d connections were made", len(reached))
	}
	if _, err = dev.dialHost(t.Context(), "127.0.0.1", 25); !errors.As(err, new(Refusal)) {
		t.Errorf("port 25: %v", err)
	}
	conn, err := dev.dialHost(t.Context(), "localhost", port)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
