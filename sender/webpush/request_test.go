package webpush

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

func message() sender.Message {
	return sender.Message{Notification: "ntf_0abc", Attempt: 2, To: address(1), Subject: "Grüße", Text: "<Hallo>",
		Link: "https://shop.example/?a=1&b=2", Data: map[string]string{"order": "7"}, Seed: uuid.UUID{1}}
}

func created(sendertest.Received) sendertest.Reply {
	return sendertest.Reply{Status: 201, Header: map[string]string{"Location": "https://push.example/message/1"}}
}

func everything(sendertest.Received) bool { return true }

func TestRequest(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, created)
	m := message()
	r := accountAt(t, s, `,"ttl_seconds":60,"urgency":"high"`).Send(t.Context(), []sender.Message{m})[0]
	got := s.Received(everything)[0]
	if err := verify(got); err != nil || r.Outcome != sender.Accepted || r.CarrierID != "https://push.example/message/1" {
		t.Fatalf("%v, %+v", err, r)
	}
	body, _ := opened(got)
	want := declarative{8030, notification{Title: "Grüße", Body: "<Hallo>", Navigate: m.Link, Tag: got.Header.Get("Topic"),
		Data: map[string]string{"order": "7", "link": m.Link, "lemma_ntf": m.Notification}}}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Error(diff)
	}
	if got.Header.Get("Ttl") != "60" || got.Header.Get("Urgency") != "high" || got.Path != "/send/000001" {
		t.Errorf("%+v", got)
	}
	other := m
	other.Notification = "ntf_1"
	if topic(&other) == topic(&m) {
		t.Error("two notifications have one topic")
	}
}

func TestMessagesThatAreNotCalled(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, created)
	c := accountAt(t, s, "")
	long := func(n int) sender.Message {
		m := message()
		m.Text = ""
		empty, _ := payload(&m)
		m.Text = strings.Repeat("x", n-len(empty))
		return m
	}
	to := func(old, replacement string) sender.Message {
		m := message()
		m.To = strings.Replace(m.To, old, replacement, 1)
		return m
	}
	token := func(text string) sender.Message {
		m := message()
		m.To = text
		return m
	}
	key, auth := browser(1)
	point := base64.RawURLEncoding.EncodeToString(key.PublicKey().Bytes())
	for _, one := range []struct {
		name   string
		m      sender.Message
		reason string
	}{
		{"3,993 bytes", long(3993), ""}, {"3,994 bytes", long(3994), "message_too_large"},
		{"base64 with padding", to(base64.RawURLEncoding.EncodeToString(auth), base64.StdEncoding.EncodeToString(auth)), ""},
		{"a token of FCM", token("dX:APA91b"), "token_invalid"}, {"no keys", token(`{"endpoint":"https://push.example/1"}`), "token_invalid"},
		{"no TLS", to("https:", "http:"), "token_invalid"}, {"a user", to("https://", "https://a@"), "token_invalid"},
		{"another point", to(point, point[:len(point)-4]+"AAAA"), "token_invalid"},
		{"a short secret", to(`"auth":"`, `"auth":"AA`), "token_invalid"},
		{"a metadata service", to(service, "https://169.254.169.254"), "forbidden_address"},
		{"a server that is away", to(service, "https://localhost:1"), "connect_failed"},
	} {
		before := len(s.Received(everything))
		r := c.Send(t.Context(), []sender.Message{one.m})[0]
		calls := len(s.Received(everything)) - before
		want := sender.Rejected
		switch one.reason {
		case "":
			want = sender.Accepted
		case "connect_failed":
			want = sender.NotAccepted
		}
		if r.Outcome != want || r.Reason != one.reason || (calls == 1) != (want == sender.Accepted) || r.Provider || r.At.IsZero() {
			t.Errorf("%s: %d calls, %+v", one.name, calls, r)
		}
	}
}

// Recipients choose their push services: neither a private address nor a name of one is called,
// also if the operator allows those of providers.
func TestPrivateEndpoints(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, created)
	c := accountAt(t, s, "")
	c.Client = wire.New(wire.Options{Operator: wire.Operator{AllowPrivate: true, Roots: s.Roots}, Strange: true})
	t.Cleanup(c.Close)
	for _, host := range []string{s.URL, "https://localhost", "https://10.0.0.1", "https://[::1]", "https://169.254.169.254"} {
		m := message()
		m.To = strings.Replace(m.To, service, host, 1)
		r := c.carrier.Send(t.Context(), []sender.Message{m})[0]
		if r.Outcome != sender.Rejected || r.Reason != "forbidden_address" || r.Provider {
			t.Errorf("%s: %+v", host, r)
		}
	}
	if n := len(s.Received(everything)); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// What is a failure of the provider for package wire is one of the recipient.
func TestFailuresOfEndpoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before sender.Receipt
		want   sender.Outcome
	}{
		{sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: "tls_failed"}, sender.NotAccepted},
		{sender.Receipt{Outcome: sender.NotCalled, Provider: true, Reason: "connect_failed"}, sender.NotAccepted},
		{sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Definite: true, Reason: "forbidden_address"}, sender.Rejected},
		{sender.Receipt{Outcome: sender.NotCalled, Reason: "call_ended"}, sender.NotCalled},
		{sender.Receipt{Outcome: sender.Unknown, Reason: "timeout"}, sender.Unknown},
	} {
		if got := ofEndpoint(c.before); got.Outcome != c.want || got.Provider || got.Definite || got.Reason != c.before.Reason {
			t.Errorf("%+v becomes %+v", c.before, got)
		}
	}
}

// One recipient's endpoint that cannot be reached, or that refuses, stops no other.
func TestOneEndpointDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, func(r sendertest.Received) sendertest.Reply {
		if numberOf(r)%10 == 0 {
			return sendertest.Reply{Status: 403}
		}
		return created(r)
	})
	c := accountAt(t, s, "")
	all := make([]sender.Message, 200)
	for i := range all {
		all[i] = message()
		all[i].To = address(i + 1)
		if i%10 == 5 {
			all[i].To = strings.Replace(address(i+1), service, "https://127.0.0.1:1", 1)
		}
	}
	outcomes := map[sender.Outcome]int{}
	for _, r := range c.Send(t.Context(), all) {
		outcomes[r.Outcome]++
	}
	if diff := cmp.Diff(map[sender.Outcome]int{sender.Accepted: 160, sender.NotAccepted: 40}, outcomes); diff != "" {
		t.Error(diff)
	}
}

func TestTokensOverTime(t *testing.T) {
	t.Parallel()
	c := accountAt(t, &sendertest.HTTPServer{}, "")
	start := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	tokens := map[string]bool{}
	for minute := range 180 {
		now := start.Add(time.Duration(minute) * time.Minute)
		token, err := c.vapid("https://a.example", now)
		if err != nil || verifyToken(token, "https://a.example", now) != nil {
			t.Fatalf("at %s: %v", now, err)
		}
		tokens[token] = true
	}
	if len(tokens) != 3 {
		t.Errorf("%d tokens in 3 hours", len(tokens))
	}
}

func TestAudiences(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"https://fcm.googleapis.com/fcm/send/a:b": "https://fcm.googleapis.com", "https://Push.Example:443/x": "https://push.example",
		"https://push.example:8443/x?y=z": "https://push.example:8443", "https://[2606::1]/x": "https://[2606::1]",
		"https://[2606::1]:8443/x": "https://[2606::1]:8443",
	} {
		s, err := readSubscription(strings.Replace(address(1), service+"/send/000001?a=b", endpoint, 1))
		if err != nil || s.audience() != want {
			t.Errorf("%s: %v, %s", endpoint, err, s.audience())
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	secrets := fmt.Sprintf(`{"vapid_private_key":%q}`, testKey)
	config := func(subject, more string) string {
		return fmt.Sprintf(`{"subject":%q,"vapid_public_key":%q%s}`, subject, testPublic, more)
	}
	other := base64.RawURLEncoding.EncodeToString(make([]byte, 65))
	for _, c := range []struct{ name, config, secrets, faults string }{
		{"what is needed", config("mailto:push@shop.example", ""), secrets, ""},
		{"a URL", config("https://shop.example/contact", `,"urgency":"very-low","ttl_seconds":0`), secrets, ""},
		{"nothing", `{}`, ``, "/config/subject /secrets/vapid_private_key"},
		{"no public key", `{"subject":"mailto:push@shop.example"}`, secrets, "/config/vapid_public_key"},
		{"another public key", `{"subject":"mailto:push@shop.example","vapid_public_key":"` + other + `"}`, secrets, "/config/vapid_public_key"},
		{"a subject that Apple refuses", config("mailto: <push@shop.example>", ""), secrets, "/config/subject"},
		{"a subject without a domain", config("mailto:admin@localhost", ""), secrets, "/config/subject"},
		{"an address alone", config("push@shop.example", ""), secrets, "/config/subject"},
		{"a short key", config("mailto:push@shop.example", ""), `{"vapid_private_key":"AAAA"}`, "/secrets/vapid_private_key"},
		{"numbers", config("mailto:push@shop.example", `,"max_requests":0,"timeout_seconds":61,"ttl_seconds":2419201,"urgency":"x"`), secrets,
			"/config/max_requests /config/timeout_seconds /config/ttl_seconds /config/urgency"},
		{"an unknown member", config("mailto:push@shop.example", `,"endpoint":"x"`), secrets, "/config/endpoint"},
	} {
		sendertest.CheckSettings(t, Kind(wire.Operator{}), c.name, c.config, c.secrets, c.faults)
	}
}
