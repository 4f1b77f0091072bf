package smtp

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	key, _ := json.Marshal(testKeyRSA)
	for _, c := range []struct {
		name, config, secrets string
		want                  []string // pointer code
	}{
		{"the least there can be", `{"host":"mail.example.test","port":587}`, ``, nil},
		{"everything", `{"host":"::1","port":25,"tls":"none","username":"u","helo":"[127.0.0.1]","max_connections":3,"timeout_seconds":5,
			"message_id_domain":"id.example.test","dkim":{"domain":"example.test","selector":"s1"}}`,
			`{"password":"p","dkim_private_key":` + string(key) + `}`, nil},
		{"nulls are absent", `{"host":"a.test","port":25,"dkim":null,"username":null}`, `null`, nil},
		{"nothing", `{}`, ``, []string{"/config/host invalid_host", "/config/port out_of_range"}},
		{"no object", `[]`, `"x"`, []string{"/config wrong_type", "/secrets wrong_type"}},
		{"unknown fields", `{"host":"a.test","port":25,"Port":1,"a/b~c":1}`, `{"pass":"x"}`,
			[]string{"/config/Port unknown_field", "/config/a~1b~0c unknown_field", "/secrets/pass unknown_field"}},
		{"wrong types", `{"host":1,"port":"25","dkim":{"domain":7},"timeout_seconds":1.5}`, ``,
			[]string{"/config/dkim/domain wrong_type", "/config/host wrong_type", "/config/port wrong_type",
				"/config/timeout_seconds wrong_type"}},
		{"unknown in dkim", `{"host":"a.test","port":25,"dkim":{"key":1}}`, ``, []string{"/config/dkim/key unknown_field"}},
		{"line breaks", `{"host":"a.test\r\nQUIT","port":25,"helo":"x\u0000","username":"u\n"}`, `{"password":"a\rb"}`,
			[]string{"/config/helo line_break", "/config/host line_break", "/config/username line_break", "/secrets/password line_break"}},
		{"out of range", `{"host":"a.test","port":70000,"max_connections":101,"timeout_seconds":0,"tls":"maybe"}`, ``,
			[]string{"/config/max_connections out_of_range", "/config/port out_of_range", "/config/timeout_seconds out_of_range",
				"/config/tls invalid_choice"}},
		{"bad names", `{"host":"a b","port":25,"helo":"x y","message_id_domain":"a>b"}`, ``,
			[]string{"/config/helo invalid_host", "/config/host invalid_host", "/config/message_id_domain invalid_host"}},
		{"password in the clear", `{"host":"a.test","port":25,"tls":"none","username":"u"}`, `{"password":"p"}`,
			[]string{"/config/tls insecure"}},
		{"password without a name", `{"host":"a.test","port":25}`, `{"password":"p"}`, []string{"/config/username required"}},
		{"name without a password", `{"host":"a.test","port":25,"username":"u"}`, ``, []string{"/secrets/password required"}},
		{"key without dkim", `{"host":"a.test","port":25}`, `{"dkim_private_key":` + string(key) + `}`, []string{"/config/dkim required"}},
		{"dkim without key", `{"host":"a.test","port":25,"dkim":{"domain":"a.test","selector":"s"}}`, ``,
			[]string{"/secrets/dkim_private_key invalid_key"}},
		{"no key at all", `{"host":"a.test","port":25,"dkim":{"domain":"a;b","selector":""}}`, `{"dkim_private_key":"hello"}`,
			[]string{"/config/dkim/domain invalid_host", "/config/dkim/selector invalid_selector",
				"/secrets/dkim_private_key invalid_key"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := Check(json.RawMessage(c.config), json.RawMessage(c.secrets), Options{AllowPrivate: true})
			if diff := cmp.Diff(c.want, faults(t, err)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func faults(t *testing.T, err error) (all []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *lemma.Error
	if !errors.As(err, &e) || e.Kind != lemma.Invalid {
		t.Fatalf("%v is not a *lemma.Error of kind invalid", err)
	}
	for _, f := range e.Fields {
		if f.Detail == "" {
			t.Errorf("%s has no detail", f.Pointer)
		}
		all = append(all, f.Pointer+" "+f.Code)
	}
	return all
}

// A host that is given as an address is refused when it is saved, as it would
// be when it is dialled.
func TestCheckOfAddresses(t *testing.T) {
	t.Parallel()
	for host, want := range map[string][2]bool{ // without and with AllowPrivate
		"127.0.0.1": {false, true}, "10.0.0.1": {false, true}, "::1": {false, true}, "169.254.169.254": {false,
			false}, "::ffff:0:a9fe:a9fe": {false, false},
		"localhost": {false, true}, "Mail.LOCALHOST.": {false, true}, "8.8.8.8": {true, true}, "mail.example.test": {true, true},
	} {
		config := json.RawMessage(`{"host":"` + host + `","port":25,"tls":"none"}`)
		for i, private := range []bool{false, true} {
			got := faults(t, Check(config, nil, Options{AllowPrivate: private}))
			if refused := cmp.Equal(got, []string{"/config/host forbidden_address"}); refused == want[i] || !refused && got != nil {
				t.Errorf("%s, private %v: %v", host, private, got)
			}
		}
	}
}

func TestMoves(t *testing.T) {
	t.Parallel()
	const before = `{"host":"mail.a.test","port":587,"username":"u"}`
	for _, c := range []struct {
		after, secrets string
		want           []string
	}{
		{before, `{"password":"p"}`, nil},
		{`{"host":"MAIL.a.test","port":587,"tls":"starttls","username":"u","timeout_seconds":5,"max_connections":3,"helo":"x.test"}`,
			`{"password":"p"}`, nil},
		{`{"host":"mail.b.test","port":587,"username":"u"}`, `{"password":"p"}`, []string{"host"}},
		{`{"host":"mail.a.test","port":588,"username":"v","tls":"none"}`, `{"password":"p"}`, []string{"port", "tls", "username"}},
		{`{"host":"mail.a.test","port":587}`, `{"password":"p"}`, []string{"username"}},
		{`{"host":"mail.b.test","port":587}`, `{"dkim_private_key":"k"}`, nil},
		{`{"host":"mail.b.test","port":587}`, `{"dkim_private_key":"k","password":"p"}`, []string{"host", "username"}},
		{`{"host":7,"port":"x"}`, `[]`, []string{"host", "port", "username"}}, // what cannot be read counts as moved
	} {
		if diff := cmp.Diff(c.want, Moves(json.RawMessage(before), json.RawMessage(c.after), json.RawMessage(c.secrets))); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.after, c.secrets, diff)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]int{
		`{"host":"mail.example.test","port":25,"tls":"none"}`: 1, `{"host":"127.0.0.1","port":25,"tls":"none"}`: 0,
		`{"host":"mail.example.test","port":587}`: 0, `{"host":"mail.example.test","port":465,"tls":"implicit"}`: 0,
	} {
		if got := Warnings(json.RawMessage(config)); len(got) != want {
			t.Errorf("%s: %q", config, got)
		}
	}
}
