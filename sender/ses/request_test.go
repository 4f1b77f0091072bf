package ses

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

// signature recomputes the Authorization header of a request, as "Signature Version 4
// signing process" of AWS describes it.
func signature(r sendertest.Received, region string) string {
	date := r.Header.Get("X-Amz-Date")
	_, signed, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	signed, _, _ = strings.Cut(signed, ",")
	var headers strings.Builder
	for name := range strings.SplitSeq(signed, ";") {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		headers.WriteString(name + ":" + strings.TrimSpace(value) + "\n")
	}
	body := sha256.Sum256(r.Body)
	canonical := strings.Join([]string{"POST", r.Path, r.Query, headers.String(), signed, hex.EncodeToString(body[:])}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	scope := date[:8] + "/" + region + "/ses/aws4_request"
	toSign := "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hex.EncodeToString(sum[:])
	key := []byte("AWS4" + testSecret)
	for _, part := range []string{date[:8], region, "ses", "aws4_request", toSign} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return "AWS4-HMAC-SHA256 Credential=" + testKeyID + "/" + scope + ", SignedHeaders=" + signed + ", Signature=" + hex.EncodeToString(key)
}

// verify returns what is wrong with a request by the documentation of SendEmail, and of the
// signatures of AWS.
func verify(r sendertest.Received) error {
	given := r.Header.Get("Authorization")
	switch want := signature(r, "eu-central-1"); {
	case given != want:
		return fmt.Errorf("signed %s, want %s", given, want)
	case r.Path != "/v2/email/outbound-emails" || r.Query != "" || r.Header.Get("Content-Type") != "application/json":
		return fmt.Errorf("%s?%s of the type %s", r.Path, r.Query, r.Header.Get("Content-Type"))
	case r.Header.Get("X-Amz-Security-Token") != testToken:
		return errors.New("no session token")
	}
	return nil
}

func TestRequest(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply {
		return sendertest.Reply{Body: `{"MessageId":"0107018f-1"}`}
	})
	c := accountAt(t, s, `,"configuration_set":"lemma"`)
	m := sender.Message{
		Notification: "ntf_0abc", Attempt: 2, To: "user@example.test", FromName: "Bücher", FromEmail: "news@shop.example",
		ReplyTo: "reply@shop.example", Subject: "Grüße", HTML: "<p>x</p>", Text: "x", Seed: uuid.UUID{1},
		Headers: [][2]string{{"List-Unsubscribe", "<https://shop.example/u>"}, {"List-Unsubscribe-Post", "List-Unsubscribe=One-Click"}},
		Date:    time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC),
	}
	if r := c.Send(t.Context(), []sender.Message{m})[0]; r.Outcome != sender.Accepted || r.CarrierID != "0107018f-1" {
		t.Fatalf("%+v", r)
	}
	got := s.Received(func(sendertest.Received) bool { return true })[0]
	if err := verify(got); err != nil {
		t.Error(err)
	}
	want := got.Header.Get("Authorization")
	for _, name := range []string{"host", "x-amz-date", "x-amz-security-token", "content-type"} {
		if !slices.Contains(strings.FieldsFunc(want, func(r rune) bool { return strings.ContainsRune(";=, ", r) }), name) {
			t.Errorf("%s is not signed", name)
		}
	}
	body := read(got)
	tags := map[string]string{}
	for _, tag := range body.EmailTags {
		tags[tag.Name] = tag.Value
	}
	if body.FromEmailAddress != m.FromEmail || body.ConfigurationSetName != "lemma" || tags["lemma_ntf"] != m.Notification ||
		tags["lemma_attempt"] != "2" || len(tags) != 2 {
		t.Errorf("%+v", body)
	}
	text, err := mail.ReadMessage(strings.NewReader(string(mailOf(got))))
	if err != nil {
		t.Fatal(err)
	}
	if text.Header.Get("List-Unsubscribe") != m.Headers[0][1] || text.Header.Get("To") != m.To || text.Header.Get("Reply-To") != m.ReplyTo {
		t.Errorf("%v", text.Header)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	keys := `{"access_key_id":"AKIDEXAMPLE123456789","secret_access_key":"x"}`
	for _, c := range []struct{ name, config, secrets, faults string }{
		{"a region", `{"region":"us-gov-west-1"}`, keys, ""},
		{"an endpoint", `{"region":"eu-west-1","endpoint":"https://email-fips.eu-west-1.amazonaws.com"}`, keys, ""},
		{"nothing", `{}`, ``, "/config/region /secrets/access_key_id /secrets/secret_access_key"},
		{"a region with a path", `{"region":"eu-west-1/x"}`, keys, "/config/region"},
		{"a region with a host", `{"region":"eu-west-1.evil.example#-1"}`, keys, "/config/region"},
		{"an endpoint with a path", `{"region":"eu-west-1","endpoint":"https://x.example/y"}`, keys, "/config/endpoint"},
		{"an endpoint without TLS", `{"region":"eu-west-1","endpoint":"http://x.example"}`, keys, "/config/endpoint"},
		{"a private endpoint", `{"region":"eu-west-1","endpoint":"https://10.0.0.1"}`, keys, "/config/endpoint"},
		{"a set with a quote", `{"region":"eu-west-1","configuration_set":"a\""}`, keys, "/config/configuration_set"},
		{"a topic", `{"region":"eu-west-1","configuration_set":"a","topic_arn":"arn:aws:sns:eu-west-1:123456789012:a"}`, keys, ""},
		{"a topic without a set", `{"region":"eu-west-1","topic_arn":"arn:aws:sns:eu-west-1:123456789012:a"}`, keys,
			"/config/configuration_set"},
		{"a topic of a host", `{"region":"eu-west-1","configuration_set":"a","topic_arn":"arn:aws:sns:x.example/:123456789012:a"}`, keys,
			"/config/topic_arn"},
		{"numbers", `{"region":"eu-west-1","max_requests":0,"timeout_seconds":61}`, keys, "/config/max_requests /config/timeout_seconds"},
		{"a token with a line break", `{"region":"eu-west-1"}`, `{"access_key_id":"AKIDEXAMPLE123456789","secret_access_key":"x",
			"session_token":"a\nb"}`, "/secrets/session_token"},
		{"an unknown member", `{"region":"eu-west-1","host":"x"}`, keys, "/config/host"},
	} {
		sendertest.CheckSettings(t, Kind(wire.Operator{}), c.name, c.config, c.secrets, c.faults)
	}
}

// The secrets stay behind when the endpoint moves away from AWS, but not when the
// region changes.
func TestMoves(t *testing.T) {
	t.Parallel()
	at := func(region, endpoint string) json.RawMessage {
		raw, _ := json.Marshal(map[string]string{"region": region, "endpoint": endpoint})
		return raw
	}
	sendertest.CheckMoves(t, Moves, []sendertest.Move{
		{"the region", at("eu-west-1", ""), at("eu-central-1", ""), 0},
		{"the case", at("eu-west-1", "https://A.example"), at("eu-west-1", "https://a.example"), 0},
		{"to another server", at("eu-west-1", ""), at("eu-west-1", "https://a.example"), 1},
		{"from one to another", at("eu-west-1", "https://a.example"), at("eu-west-1", "https://b.example"), 1},
		{"to another port", at("eu-west-1", "https://a.example"), at("eu-west-1", "https://a.example:444"), 1},
		{"with the region", at("eu-west-1", "https://a.example"), at("eu-central-1", "https://b.example"), 1},
	})
	if len(Warnings(at("eu-west-1", ""))) != 1 || len(Warnings(json.RawMessage(`{"region":"eu-west-1","configuration_set":"a"}`))) != 1 ||
		len(Warnings(json.RawMessage(`{"region":"eu-west-1","configuration_set":"a","topic_arn":"arn:aws:sns:eu-west-1:123456789012:a"}`))) != 0 {
		t.Error("warnings about the configuration set and the topic")
	}
}
