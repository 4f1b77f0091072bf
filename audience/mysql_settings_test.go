package audience

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// TestSettingsThatAProxyDrops has a proxy that accepts the settings of a session, and does
// not pass on one of them.
func TestSettingsThatAProxyDrops(t *testing.T) {
	t.Parallel()
	a := New(nil, nil, dev)
	s := &mysqlSession{version: "8.0.0"}
	want := []string{}
	for _, one := range s.settings() {
		want = append(want, "does not keep the setting "+one.name+" = ")
	}
	want = append(want, "has the setting timestamp", "is in another database")
	for i, text := range want {
		f := newFakeMySQL(t)
		f.reply = func(statement string, _ byte) []byte {
			switch {
			case !strings.HasPrefix(statement, "select @@"):
				return nil
			case i == len(want)-1:
				return keptSettings(i-1, "other")
			}
			return keptSettings(len(want)-2, "SHOP", i) // a server may have names in one case
		}
		f.serve()
		err := a.within(t.Context(), openedSource{target: f.target()}, a.readSpan(), use("select id, email from people"))
		if codeOf(err) != CodeRefused || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

// TestProxyThatChangesSessions has one that loses the settings between two transactions.
// The second one has another connection.
func TestProxyThatChangesSessions(t *testing.T) {
	t.Parallel()
	a := New(nil, nil, hostileOptions)
	t.Cleanup(a.Close)
	var logins, verified atomic.Int32
	f := newFakeMySQL(t)
	f.reply = func(statement string, _ byte) []byte {
		switch {
		case statement == "login":
			logins.Add(1)
		case strings.HasPrefix(statement, "select @@") && verified.Add(1) == 2:
			return keptSettings(strings.Count(statement, "<=>"), "shop", 0)
		}
		return nil
	}
	f.serve()
	for range 2 {
		err := a.withConnection(t.Context(), openedSource{target: f.target()}, func(*run, *connection) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if logins.Load() != 2 {
		t.Errorf("%d connections", logins.Load())
	}
	a.Close()
}

// TestServersThatDoNotKnowASetting have it named, also where their own message is not shown.
func TestServersThatDoNotKnowASetting(t *testing.T) {
	t.Parallel()
	a := New(nil, nil, hostileOptions)
	for begins, want := range map[string]string{
		"set session": "the source does not accept the settings of a session: max_sort_length = ",
		"select @@":   "the source does not return the settings of a session: the source answers with SQLSTATE HY000",
	} {
		f := newFakeMySQL(t)
		f.reply = func(statement string, _ byte) []byte {
			if strings.HasPrefix(statement, begins) {
				return packet(1, append([]byte{0xff, 0xa9, 0x04}, "#HY000Unknown system variable 'max_sort_length'"...))
			}
			return nil
		}
		f.serve()
		err := a.within(t.Context(), openedSource{target: f.target()}, a.readSpan(), use("select id, email from people"))
		if codeOf(err) != CodeRefused || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", begins, err)
		}
	}
}

// TestSettingsThatVersionsHave has the names that some servers do not know.
func TestSettingsThatVersionsHave(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"5.7.44-log":             "transaction_isolation transaction_read_only max_execution_time",
		"8.0.36":                 "windowing_use_high_precision transaction_isolation transaction_read_only max_execution_time",
		"9.5.0":                  "windowing_use_high_precision transaction_isolation transaction_read_only max_execution_time",
		"10.11.6-MariaDB-0+deb1": "old_mode tx_isolation tx_read_only max_statement_time",
		"11.0.6-MariaDB":         "old_mode tx_isolation tx_read_only max_statement_time",
		"11.4.2-MariaDB":         "old_mode transaction_isolation transaction_read_only max_statement_time",
	} {
		s := &mysqlSession{version: version}
		var got []string
		for _, one := range append(s.settings(), s.bounds(span{})...) {
			own := []string{"windowing", "transaction", "tx_", "old_mode", "max_execution", "max_statement"}
			if slices.ContainsFunc(own, func(begins string) bool { return strings.HasPrefix(one.name, begins) }) {
				got = append(got, one.name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
}
