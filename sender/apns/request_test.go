package apns

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

func message() sender.Message {
	return sender.Message{Notification: "ntf_" + strings.Repeat("0", 52), Attempt: 2, To: address(1), Subject: "Grüße", Text: "Hallo",
		Link: "myapp://offers", Data: map[string]string{"order": "7"}, Date: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)}
}

func TestRequest(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, accept)
	m := message()
	r := accountAt(t, s, `,"priority":5,"ttl_seconds":3600`).Send(t.Context(), []sender.Message{m})[0]
	got := s.Received(func(sendertest.Received) bool { return true })[0]
	if err := verify(got); err != nil || r.Outcome != sender.Accepted || r.CarrierID != got.Header.Get("Apns-Id") {
		t.Fatalf("%v, %+v", err, r)
	}
	var body any
	if err := json.Unmarshal(got.Body, &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"aps": map[string]any{"alert": map[string]any{"title": "Grüße", "body": "Hallo"}, "sound": "default"},
		"link": "myapp://offers", "order": "7", "lemma_ntf": m.Notification}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{"Apns-Collapse-Id": m.Notification, "Apns-Priority": "5",
		"Apns-Expiration": strconv.FormatInt(m.Date.Add(time.Hour).Unix(), 10)} {
		if have := got.Header.Get(name); have != want {
			t.Errorf("%s %q, want %q", name, have, want)
		}
	}
	other := m
	other.Notification = "ntf_1"
	if messageID(&other) == messageID(&m) {
		t.Error("two notifications have one apns-id")
	}
}

// APNs speaks HTTP/2 only. A server without it gets no request.
func TestOnlyHTTP2(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, false, accept)
	r := accountAt(t, s, "").Send(t.Context(), []sender.Message{message()})[0]
	n := len(s.Received(func(sendertest.Received) bool { return true }))
	if n != 0 || r.Outcome != sender.NotAccepted || r.Reason != "tls_failed" {
		t.Errorf("%d requests, %+v", n, r)
	}
}

// A message that is not to be kept has the expiration 0, whatever its date is.
func TestWithoutTTL(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, accept)
	accountAt(t, s, `,"ttl_seconds":0`).Send(t.Context(), []sender.Message{message()})
	if got := s.Received(func(sendertest.Received) bool { return true })[0].Header.Get("Apns-Expiration"); got != "0" {
		t.Errorf("expiration %q", got)
	}
}

func TestMessagesThatAreNotCalled(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, accept)
	c := accountAt(t, s, "")
	long := func(n int) sender.Message {
		m := message()
		m.Text = ""
		empty, _ := payload(&m)
		m.Text = strings.Repeat("x", n-len(empty))
		return m
	}
	taken := message()
	taken.Data = map[string]string{"aps": "x"}
	to := func(token string) sender.Message {
		m := message()
		m.To = token
		return m
	}
	for _, one := range []struct {
		name   string
		m      sender.Message
		reason string
	}{
		{"data for Apple", taken, "message_invalid"}, {"4,096 bytes", long(4096), ""}, {"4,097 bytes", long(4097), "message_too_large"},
		{"a path", to("ab/../cd"), "token_invalid"}, {"a query", to("ab?cd"), "token_invalid"}, {"half a byte", to("abc"), "token_invalid"},
		{"nothing", to(""), "token_invalid"}, {"a token of FCM", to("dX:APA91b"), "token_invalid"},
		{"401 hexadecimal digits", to(strings.Repeat("a", 402)), "token_invalid"},
	} {
		before := len(s.Received(func(sendertest.Received) bool { return true }))
		r := c.Send(t.Context(), []sender.Message{one.m})[0]
		calls := len(s.Received(func(sendertest.Received) bool { return true })) - before
		if one.reason == "" && (r.Outcome != sender.Accepted || calls != 1) ||
			one.reason != "" && (r.Outcome != sender.Rejected || r.Reason != one.reason || calls != 0 || r.At.IsZero()) {
			t.Errorf("%s: %d calls, %+v", one.name, calls, r)
		}
	}
}

// A token is used for 30 minutes and is at most 35 minutes old. Processes that start at
// any time have the same one.
func TestTokensOverTime(t *testing.T) {
	t.Parallel()
	s := &sendertest.HTTPServer{URL: "https://api.push.apple.com"}
	first := accountAt(t, s, "")
	start := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	last, changed := "", start
	for now := start; now.Before(start.Add(3 * time.Hour)); now = now.Add(time.Minute) {
		bearer, err := first.authorization(now)
		other, _ := accountAt(t, s, "").authorization(now)
		if err != nil || bearer != other {
			t.Fatalf("at %s: %v, another process has another token", now, err)
		}
		issued, err := verifyToken(strings.TrimPrefix(bearer, "bearer "))
		if age := now.Sub(time.Unix(issued, 0)); err != nil || age < 5*time.Minute || age >= 35*time.Minute {
			t.Fatalf("at %s: %v, the token is %s old", now, err, age)
		}
		if bearer != last {
			if last != "" && now.Sub(changed) != 30*time.Minute && changed != start {
				t.Errorf("at %s: a new token after %s", now, now.Sub(changed))
			}
			last, changed = bearer, now
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	key := string(secrets())
	config := func(more string) string {
		return fmt.Sprintf(`{"key_id":%q,"team_id":%q,"topic":%q%s}`, testKeyID, testTeam, testTopic, more)
	}
	for _, c := range []struct{ name, config, secrets, faults string }{
		{"what is needed", config(""), key, ""},
		{"the sandbox", config(`,"environment":"sandbox"`), key, ""},
		{"another port", config(`,"endpoint":"https://api.push.apple.com:2197"`), key, ""},
		{"nothing", `{}`, ``, "/config/key_id /config/team_id /config/topic /secrets/private_key"},
		{"ids in lower case", `{"key_id":"abc123defg","team_id":"x","topic":"com.example.shop"}`, key, "/config/key_id /config/team_id"},
		{"a topic with a break", `{"key_id":"ABC123DEFG","team_id":"DEF123GHIJ","topic":"a\r\nb"}`, key, "/config/topic"},
		{"another environment", config(`,"environment":"development"`), key, "/config/environment"},
		{"an endpoint with a path", config(`,"endpoint":"https://x.example/y"`), key, "/config/endpoint"},
		{"an endpoint without TLS", config(`,"endpoint":"http://x.example"`), key, "/config/endpoint"},
		{"a private endpoint", config(`,"endpoint":"https://10.0.0.1"`), key, "/config/endpoint"},
		{"numbers", config(`,"max_requests":0,"timeout_seconds":61,"priority":6,"ttl_seconds":-1`), key,
			"/config/max_requests /config/priority /config/timeout_seconds /config/ttl_seconds"},
		{"another key", config(""), `{"private_key":"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}`, "/secrets/private_key"},
		{"an unknown member", config(`,"bundle":"x"`), key, "/config/bundle"},
	} {
		sendertest.CheckSettings(t, Kind(wire.Operator{}), c.name, c.config, c.secrets, c.faults)
	}
}

// The key stays behind when the endpoint moves away from Apple, but not between the
// environments.
func TestMoves(t *testing.T) {
	t.Parallel()
	at := func(environment, endpoint string) json.RawMessage {
		raw, _ := json.Marshal(map[string]string{"environment": environment, "endpoint": endpoint})
		return raw
	}
	sendertest.CheckMoves(t, Moves, []sendertest.Move{
		{"the environment", at("sandbox", ""), at("production", ""), 0},
		{"Apple's other port", at("production", ""), at("production", "https://api.push.apple.com:2197"), 0},
		{"the case", at("production", "https://A.example"), at("production", "https://a.example"), 0},
		{"to another server", at("production", ""), at("production", "https://a.example"), 1},
		{"from one to another", at("production", "https://a.example"), at("production", "https://b.example"), 1},
		{"to another port", at("production", "https://a.example"), at("production", "https://a.example:444"), 1},
	})
	if len(Warnings(at("sandbox", ""))) != 1 || len(Warnings(at("production", ""))) != 0 {
		t.Error("warnings about the sandbox")
	}
}
