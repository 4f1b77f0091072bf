package sns

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/sender"
	"lemma/sender/ses/sns/snstest"
	"lemma/slots"
)

func start(t *testing.T) (*snstest.Service, *Client, Topic) {
	t.Helper()
	s := snstest.Start(t)
	topic, ok := ParseTopic(snstest.Topic)
	if !ok {
		t.Fatal("the topic is not one")
	}
	return s, NewClient(Options{Roots: s.Roots, Transport: s.Transport}), topic
}

func notification() map[string]string {
	return map[string]string{"Type": "Notification", "MessageId": "da41e39f", "TopicArn": snstest.Topic, "Subject": "Amazon SES",
		"Message": `{"a":"b\nc"}`, "Timestamp": time.Now().UTC().Format("2006-01-02T15:04:05.000Z")}
}

// Both signature versions are accepted, for each type, with one fetch of the certificate.
func TestOpen(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	confirmation := map[string]string{"Type": "SubscriptionConfirmation", "MessageId": "1", "Token": "token", "TopicArn": snstest.Topic,
		"Message": "You have chosen", "SubscribeURL": snstest.SubscribeURL, "Timestamp": time.Now().UTC().Format(time.RFC3339)}
	without := notification()
	delete(without, "Subject")
	for _, version := range []string{"1", "2"} {
		for _, fields := range []map[string]string{notification(), without, confirmation} {
			m, err := c.Open(t.Context(), topic, s.Sign(version, fields), time.Now())
			if err != nil || m.MessageID != fields["MessageId"] || m.Message != fields["Message"] || m.SentAt.IsZero() {
				t.Errorf("version %s of %s: %+v, %v", version, fields["Type"], m, err)
			}
		}
	}
	if got := s.Requests(); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// What is not signed by the topic is refused, and mostly without a request to AWS.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	change := func(name, value string) []byte {
		fields := notification()
		fields[name] = value
		return s.Sign("2", fields)
	}
	after := func(name string, value any) []byte {
		var m map[string]any
		json.Unmarshal(s.Sign("2", notification()), &m)
		m[name] = value
		body, _ := json.Marshal(m)
		return body
	}
	at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	valid := s.Sign("2", notification())
	for _, c2 := range []struct {
		name string
		body []byte
		want error
	}{
		{"nothing", nil, sender.ErrUnreadable},
		{"too large", []byte(`{"Message":"` + strings.Repeat("x", sender.MostWebhook) + `"}`), sender.ErrUnreadable},
		{"truncated", valid[:len(valid)-20], sender.ErrUnreadable},
		{"a list", []byte(`[]`), sender.ErrUnreadable},
		{"a raw delivery", []byte(`{"eventType":"Bounce"}`), sender.ErrForged},
		{"another topic", change("TopicArn", strings.Replace(snstest.Topic, "lemma", "other", 1)), sender.ErrForeign},
		{"another account", change("TopicArn", strings.Replace(snstest.Topic, "1234", "9234", 1)), sender.ErrForeign},
		{"a changed message", after("Message", "{}"), sender.ErrForged},
		{"a changed id", after("MessageId", "x"), sender.ErrForged},
		{"a changed subject", after("Subject", "x"), sender.ErrForged},
		{"another version", after("SignatureVersion", "1"), sender.ErrForged},
		{"an unknown version", after("SignatureVersion", "3"), sender.ErrForged},
		{"an unknown type", change("Type", "Other"), sender.ErrForged},
		{"a signature of another form", after("Signature", "%"), sender.ErrForged},
		{"an old one", change("Timestamp", at(-73*time.Hour)), sender.ErrReplayed},
		{"one from the future", change("Timestamp", at(6*time.Minute)), sender.ErrReplayed},
		{"a day late", change("Timestamp", at(-25*time.Hour)), nil},
		{"another time", change("Timestamp", "yesterday"), sender.ErrUnreadable},
	} {
		if _, err := c.Open(t.Context(), topic, c2.body, time.Now()); !errors.Is(err, c2.want) {
			t.Errorf("%s: %v, want %v", c2.name, err, c2.want)
		}
	}
	if got := s.Requests(); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// The certificate is fetched only from Amazon SNS in the region of the topic.
func TestCertificateURL(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	for _, at := range []string{
		"http://" + snstest.Host + "/SimpleNotificationService-0123456789abcdef.pem",
		"https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
		"https://" + snstest.Host + ".evil.example/SimpleNotificationService-0123456789abcdef.pem",
		"https://evil.example/" + snstest.Host + "/SimpleNotificationService-0123456789abcdef.pem",
		"https://" + snstest.Host + "@evil.example/SimpleNotificationService-0123456789abcdef.pem",
		"https://" + snstest.Host + ":444/SimpleNotificationService-0123456789abcdef.pem",
		"https://" + snstest.Host + "/SimpleNotificationService-0123456789abcdef.pem?x",
		"https://" + snstest.Host + "/SimpleNotificationService-0123456789abcdef.pem#x",
		"https://" + snstest.Host + "/SimpleNotificationService-0123456789abcdef.pem#",
		"HTTPS://" + snstest.Host + "/SimpleNotificationService-0123456789abcdef.pem",
		"https://" + snstest.Host + "/SimpleNotificationService-0123456789abcdef%2epem",
		"https://" + snstest.Host + "/SimpleNotificationService-0123456789abcdef.txt",
		"https://" + snstest.Host + "/../bucket/SimpleNotificationService-0123456789abcdef.pem",
		"https://" + snstest.Host + "/bucket/key.pem",
		"https://sns.eu-central-1.amazonaws.com.cn/SimpleNotificationService-0123456789abcdef.pem",
		"https://169.254.169.254/latest.pem", "", "::",
	} {
		fields := maps.Clone(notification())
		fields["SigningCertURL"] = at
		if at == "" {
			fields["SigningCertURL"] = " "
		}
		if _, err := c.Open(t.Context(), topic, s.Sign("2", fields), time.Now()); !errors.Is(err, sender.ErrForged) {
			t.Errorf("%s: %v", at, err)
		}
	}
	if got := s.Requests(); len(got) != 0 {
		t.Errorf("fetched %q", got)
	}
}

// A certificate must be valid, for Amazon SNS, and of a trusted authority.
func TestCertificate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		setup func(*snstest.Service)
		want  error
	}{
		{"as AWS has it", func(*snstest.Service) {}, nil},
		{"without its issuer", func(s *snstest.Service) { s.Alone = true }, nil},
		{"of the region", func(s *snstest.Service) { s.Names = []string{"sns-signing.eu-central-1.amazonaws.com"} }, nil},
		{"of another region", func(s *snstest.Service) { s.Names = []string{"sns.us-east-1.amazonaws.com"} }, sender.ErrForged},
		{"of another server", func(s *snstest.Service) { s.Names = []string{"evil.example"} }, sender.ErrForged},
		{"expired", func(s *snstest.Service) { s.Expire = -time.Minute }, sender.ErrForged},
		{"none", func(s *snstest.Service) { s.Status = http.StatusNotFound }, sender.ErrForged},
		{"a redirect", func(s *snstest.Service) { s.Status = http.StatusFound }, sender.ErrForged},
	} {
		s, client, topic := start(t)
		c.setup(s)
		if _, err := client.Open(t.Context(), topic, s.Sign("2", notification()), time.Now()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	t.Run("of another authority", func(t *testing.T) {
		t.Parallel()
		s, _, topic := start(t)
		other := snstest.Start(t)
		client := NewClient(Options{Roots: other.Roots, Transport: s.Transport})
		_, err := client.Open(t.Context(), topic, s.Sign("2", notification()), time.Now())
		if !errors.Is(err, sender.ErrForged) {
			t.Error(err)
		}
	})
}

// When AWS fails, the request is not refused, and AWS is asked again only after a while.
func TestCertificateIsUnavailable(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	s.Status = http.StatusServiceUnavailable
	for range 3 {
		_, err := c.Open(t.Context(), topic, s.Sign("2", notification()), time.Now())
		if err == nil || errors.Is(err, sender.ErrForged) {
			t.Error(err)
		}
	}
	if got := s.Requests(); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// A caller with many paths fetches few certificates, and takes those of no other topic.
func TestFetchesAreBounded(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	s.Status = http.StatusNotFound
	begun := time.Now()
	for i := range 20 * mostFetches {
		fields := maps.Clone(notification())
		fields["SigningCertURL"] = fmt.Sprintf("https://%s/SimpleNotificationService-%032d.pem", snstest.Host, i)
		if _, err := c.Open(t.Context(), topic, s.Sign("2", fields), time.Now()); err == nil {
			t.Error("accepted")
		}
	}
	if n, seconds := len(s.Requests()), int(time.Since(begun)/time.Second)+2; n > seconds*mostFetches {
		t.Errorf("%d fetches", n)
	}
	other := topic
	other.arn += "2"
	if ok, _ := c.admit(other, ""); !ok {
		t.Error("another topic has no fetches")
	}
	c.mu.Lock()
	c.second = c.second.Add(-time.Second)
	c.mu.Unlock()
	if ok, _ := c.admit(topic, ""); !ok {
		t.Error("the topic has no fetches in the next second")
	}
}

// Many topics of a workspace fetch few certificates at a time. A fetch goes on after its request
// has ended.
func TestFetchesAtATimeAreBounded(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	topic.Workspace = uuid.New()
	leaves := make([]func(), limitsOfFetches.Workspace)
	for i := range leaves {
		leave, err := c.places.Try(slots.Resource{Workspace: topic.Workspace})
		if err != nil {
			t.Fatal(err)
		}
		leaves[i] = leave
	}
	open := func(topic Topic) error {
		_, err := c.Open(t.Context(), topic, s.Sign("2", notification()), time.Now())
		return err
	}
	if err := open(topic); !errors.Is(err, errTooMany) || len(s.Requests()) > 0 {
		t.Errorf("%v after %d fetches", err, len(s.Requests()))
	}
	other := topic
	other.Workspace = uuid.New()
	if err := open(other); err != nil {
		t.Errorf("another workspace: %v", err)
	}
	c.mu.Lock()
	for at, k := range c.keys {
		c.keys[at] = kept{k.key, time.Now()}
	}
	c.mu.Unlock()
	if err := open(topic); err != nil {
		t.Errorf("one that was good: %v", err)
	}
	for _, leave := range leaves {
		leave()
	}
	if n := c.places.Taken(slots.Resource{Workspace: other.Workspace}); n > 0 {
		t.Errorf("%d fetches have not ended", n)
	}
}

// Forged requests use up the fetches of a second. The certificate of the topic, which is
// due to be fetched again, does not need them.
func TestAKnownCertificateIsFetchedBesideForgedRequests(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	open := func() error {
		_, err := c.Open(t.Context(), topic, s.Sign("2", notification()), time.Now())
		return err
	}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	for at, k := range c.keys {
		c.keys[at] = kept{k.key, time.Now()}
	}
	c.second, c.fetches = time.Now().Truncate(time.Second), map[string]int{topic.arn: mostFetches}
	c.mu.Unlock()
	if err := open(); err != nil {
		t.Error(err)
	}
}

// Of too many certificates the one that is fetched again first is forgotten, and no other.
func TestTooManyCertificates(t *testing.T) {
	t.Parallel()
	c := NewClient(Options{})
	for i := range mostKeys + 2 {
		c.keep(fmt.Sprint(i), kept{until: time.Now().Add(time.Duration((i+5)%mostKeys) * time.Hour)})
		c.keep("0", kept{until: time.Now().Add(5 * time.Hour)})
	}
	if len(c.keys) != mostKeys || c.isGood(fmt.Sprint(mostKeys-5)) || c.isGood(fmt.Sprint(mostKeys-4)) || !c.isGood("0") {
		t.Errorf("%d are left", len(c.keys))
	}
}

// A subscription is confirmed by one request, only for the topic, without redirects.
func TestConfirm(t *testing.T) {
	t.Parallel()
	s, c, topic := start(t)
	confirm := func(at string) error {
		m, err := c.Open(t.Context(), topic, s.Confirmation("SubscriptionConfirmation", at), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return c.Confirm(t.Context(), topic, m)
	}
	base := "https://" + snstest.Host
	for _, at := range []string{
		"https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=a&TopicArn=" + snstest.Topic,
		"http://" + snstest.Host + "/?Action=ConfirmSubscription&Token=a&TopicArn=" + snstest.Topic,
		base + "/?Action=ConfirmSubscription&Token=a&TopicArn=" + snstest.Topic + "2",
		base + "/?Action=ConfirmSubscription&Token=a&TopicArn=x&TopicArn=" + snstest.Topic,
		base + "/?Action=DeleteTopic&Token=a&TopicArn=" + snstest.Topic,
		base + "/?Action=ConfirmSubscription&TopicArn=" + snstest.Topic,
		base + "/other?Action=ConfirmSubscription&Token=a&TopicArn=" + snstest.Topic,
		base + ":8443/?Action=ConfirmSubscription&Token=a&TopicArn=" + snstest.Topic,
		"https://169.254.169.254/?Action=ConfirmSubscription&Token=a&TopicArn=" + snstest.Topic,
	} {
		if err := confirm(at); !errors.Is(err, sender.ErrForged) {
			t.Errorf("%s: %v", at, err)
		}
	}
	if err := confirm(snstest.SubscribeURL); err != nil {
		t.Error(err)
	}
	if got := s.Requests(); len(got) != 2 || "https://"+got[1] != snstest.SubscribeURL {
		t.Errorf("%q", got)
	}
	s.Status = http.StatusFound
	if err := confirm(snstest.SubscribeURL); err == nil || len(s.Requests()) != 3 {
		t.Errorf("a redirect: %v, %q", err, s.Requests())
	}
}

func TestParseTopic(t *testing.T) {
	t.Parallel()
	for arn, host := range map[string]string{
		snstest.Topic: snstest.Host,
		"arn:aws-cn:sns:cn-north-1:123456789012:a":          "sns.cn-north-1.amazonaws.com.cn",
		"arn:aws-us-gov:sns:us-gov-west-1:123456789012:a_1": "sns.us-gov-west-1.amazonaws.com",
		"arn:aws:sns:eu-central-1:123456789012:a.fifo":      "",
		"arn:aws:sqs:eu-central-1:123456789012:a":           "",
		"arn:aws:sns:evil.example/:123456789012:a":          "",
		"arn:aws:sns:eu-central-1:123456789012:a:b":         "",
		"": "",
	} {
		if topic, ok := ParseTopic(arn); ok != (host != "") || ok && topic.host() != host {
			t.Errorf("%q: %q", arn, topic.host())
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"Type":"Notification","TopicArn":"` + snstest.Topic + `","Signature":"AA==","SignatureVersion":"1",` +
		`"SigningCertURL":"https://x"}`))
	f.Add([]byte(`{"Type":"SubscriptionConfirmation","TopicArn":null,"Signature":1}`))
	f.Add([]byte(`{"Signature":"a","Subject":{}}`))
	f.Add([]byte(strings.Repeat("[", 20000)))
	topic, _ := ParseTopic(snstest.Topic)
	c := NewClient(Options{Transport: http.NewFileTransport(http.Dir(f.TempDir()))})
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := c.Open(t.Context(), topic, body, time.Now()); err == nil {
			t.Error("accepted without a signature")
		}
	})
}
