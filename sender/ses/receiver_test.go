package ses

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/sender"
	"lemma/sender/ses/sns"
	"lemma/sender/ses/sns/snstest"
	"lemma/sender/wire"
)

// receiverOf makes the receiver of an account with snstest.Topic.
func receiverOf(t testing.TB, s *snstest.Service, more string) (sender.Receiver, error) {
	t.Helper()
	account := sender.Account{
		Config:  []byte(`{"region":"eu-central-1","configuration_set":"lemma"` + more + `}`),
		Secrets: fmt.Appendf(nil, `{"access_key_id":%q,"secret_access_key":%q}`, testKeyID, testSecret),
	}
	return receive(account, wire.Operator{}, sns.NewClient(sns.Options{Roots: s.Roots, Transport: s.Transport}))
}

const testCarrierID = "0107018f-7c191be45-e9aedb9a-02f9-4d12-a87d-dd0099a07f8a-000000"

// mailOfEvent is the object "mail" of an event for one recipient.
func mailOfEvent(notification string) string {
	return `"mail":{"timestamp":"2026-11-22T10:00:00.012Z","source":"Shop <news@shop.example>","sendingAccountId":"123456789012",
		"messageId":"` + testCarrierID + `","destination":["user@example.test"],"headersTruncated":false,
		"headers":[{"name":"From","value":"Shop <news@shop.example>"}],"commonHeaders":{"from":["Shop <news@shop.example>"]},
		"tags":{"ses:configuration-set":["lemma"],"lemma_ntf":["` + notification + `"],"lemma_attempt":["2"]}}`
}

func TestReports(t *testing.T) {
	t.Parallel()
	s := snstest.Start(t)
	r, err := receiverOf(t, s, `,"topic_arn":"`+snstest.Topic+`"`)
	if err != nil {
		t.Fatal(err)
	}
	bounce := func(kind, sub string) string {
		return `"eventType":"Bounce","bounce":{"bounceType":"` + kind + `","bounceSubType":"` + sub + `","bouncedRecipients":[
			{"emailAddress":"user@example.test","action":"failed","status":"5.1.1",
			"diagnosticCode":"smtp; 550 5.1.1 <user@example.test>: user unknown"}],
			"timestamp":"2026-11-22T10:00:05.669Z","feedbackId":"1","reportingMTA":"dsn; mta.example.test"}`
	}
	const to = "user@example.test"
	const detail = "smtp; 550 5.1.1 <[address]>: user unknown"
	at := time.Date(2026, 11, 22, 10, 0, 5, 669e6, time.UTC)
	stamp := `"timestamp":"2026-11-22T10:00:05.669Z"`
	for _, c := range []struct {
		name, event string
		want        []events.Report
	}{
		{"Send", `"eventType":"Send","send":{}`, []events.Report{{Type: events.TypeAccepted}}},
		{"Delivery", `"eventType":"Delivery","delivery":{` + stamp + `,"processingTimeMillis":546,"recipients":["user@example.test"],
			"smtpResponse":"250 2.6.0 Message received","reportingMTA":"mta.example.test"}`,
			[]events.Report{{Type: events.TypeDelivered, Code: 250, Detail: "250 2.6.0 Message received", OccurredAt: at}}},
		{"DeliveryDelay", `"eventType":"DeliveryDelay","deliveryDelay":{` + stamp + `,"delayType":"MailboxFull",
			"expirationTime":"2026-11-22T20:00:00.914Z","delayedRecipients":[{"emailAddress":"user@example.test","status":"4.2.2",
			"diagnosticCode":"smtp; 452 4.2.2 mailbox of user@example.test full"}]}`,
			[]events.Report{{Type: events.TypeDelayed, Reason: "mailbox_full",
				Code: 452, Detail: "smtp; 452 4.2.2 mailbox of [address] full", OccurredAt: at}}},
		{"a permanent bounce", bounce("Permanent", "General"),
			[]events.Report{{Type: events.TypeBounced, Address: to, Reason: "general", Code: 550, Detail: detail, OccurredAt: at}}},
		{"a bounce of the account's list", bounce("Permanent", "OnAccountSuppressionList"),
			[]events.Report{{Type: events.TypeBounced, Address: to, Reason: "on_account_suppression_list",
				Code: 550, Detail: detail, OccurredAt: at}}},
		{"a bounce of an unsubscribed recipient", bounce("Permanent", "UnsubscribedRecipient"),
			[]events.Report{{Type: events.TypeUnsubscribed, Address: to, Reason: "unsubscribed_recipient",
				Code: 550, Detail: detail, OccurredAt: at}}},
		{"a transient bounce", bounce("Transient", "MailboxFull"),
			[]events.Report{{Type: events.TypeSoftBounced, Reason: "mailbox_full", Code: 550, Detail: detail, OccurredAt: at}}},
		{"a bounce of a large message", bounce("Transient", "MessageTooLarge"),
			[]events.Report{{Type: events.TypeUndelivered, Reason: "message_too_large", Code: 550, Detail: detail, OccurredAt: at}}},
		{"an undetermined bounce", bounce("Undetermined", "Undetermined"),
			[]events.Report{{Type: events.TypeUndelivered, Reason: "undetermined", Code: 550, Detail: detail, OccurredAt: at}}},
		{"a complaint", `"eventType":"Complaint","complaint":{` + stamp + `,"complainedRecipients":[{"emailAddress":"user@example.test"}],
			"feedbackId":"1","complaintSubType":null,"userAgent":"Feedback","complaintFeedbackType":"abuse","arrivalDate":"2026-11-22T10:00:00Z"}`,
			[]events.Report{{Type: events.TypeComplained, Address: to, Reason: "abuse", OccurredAt: at}}},
		{"a complaint without a recipient", `"eventType":"Complaint","complaint":{` + stamp + `,"complainedRecipients":[]}`,
			[]events.Report{{Type: events.TypeComplained, Address: to, OccurredAt: at}}},
		{"no spam", `"eventType":"Complaint","complaint":{` + stamp + `,"complaintFeedbackType":"not-spam"}`, nil},
		{"Open", `"eventType":"Open","open":{"ipAddress":"192.0.2.1",` + stamp + `,"userAgent":"Mozilla/5.0"}`,
			[]events.Report{{Type: events.TypeOpened, OccurredAt: at}}},
		{"Click", `"eventType":"Click","click":{"ipAddress":"192.0.2.1","link":"https://shop.example/",` + stamp + `}`,
			[]events.Report{{Type: events.TypeClicked, OccurredAt: at}}},
		{"Subscription", `"eventType":"Subscription","subscription":{"contactList":"list",` + stamp + `,"source":"UnsubscribeHeader",
			"newTopicPreferences":{"unsubscribeAll":true,"topicSubscriptionStatus":[{"topicName":"a","subscriptionStatus":"OptOut"}]}}`,
			[]events.Report{{Type: events.TypeUnsubscribed, Address: to, OccurredAt: at}}},
		{"a subscription to topics",
			`"eventType":"Subscription","subscription":{` + stamp + `,"newTopicPreferences":{"unsubscribeAll":false}}`, nil},
		{"Reject", `"eventType":"Reject","reject":{"reason":"Bad content"}`, []events.Report{{Type: events.TypeRejected, Detail: "Bad content"}}},
		{"Rendering Failure", `"eventType":"Rendering Failure","failure":{"templateName":"t","errorMessage":"missing"}`,
			[]events.Report{{Type: events.TypeRejected, Detail: "missing"}}},
		{"another type", `"eventType":"Other"`, nil},
	} {
		ntf := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
		sent := time.Now().UTC().Truncate(time.Millisecond)
		body := s.Notification("da41e39f-"+c.name, "{"+c.event+","+mailOfEvent(ntf)+"}", sent)
		for range 2 { // it is redelivered as it was
			got, err := r.Receive(t.Context(), sender.WebhookRequest{Body: body, At: time.Now()})
			for i := range c.want {
				c.want[i].ID, c.want[i].Notification, c.want[i].Attempt, c.want[i].CarrierID = "da41e39f-"+c.name, ntf, 2, testCarrierID
				if c.want[i].OccurredAt.IsZero() {
					c.want[i].OccurredAt = sent
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%s: %v\n%s", c.name, err, diff)
			}
		}
	}
}

// A report of several recipients has an id for each, and a message of another sender has
// no notification.
func TestReportsOfOthers(t *testing.T) {
	t.Parallel()
	recipients := make([]map[string]string, 60)
	for i := range recipients {
		recipients[i] = map[string]string{"emailAddress": fmt.Sprint(i)}
	}
	list, _ := json.Marshal(recipients)
	m := &sns.Message{MessageID: "x", Message: `{"eventType":"Bounce","bounce":{"bounceType":"Permanent","bouncedRecipients":` + string(list) +
		`},"mail":{"tags":{"lemma_ntf":["cmp_1"],"lemma_attempt":["3"]},"messageId":"a\nb"}}`}
	got, err := reports(m, nil)
	if err != nil || len(got) != mostRecipients || got[0].ID != "x" || got[1].ID != "x/1" || got[0].Notification != "" ||
		got[0].Attempt != 0 || got[0].CarrierID != "" {
		t.Errorf("%d, %+v, %v", len(got), got[:1], err)
	}
	if got[0].Address != "" {
		t.Errorf("the address of another sender's recipient: %s", got[0].Address)
	}
	ntf := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	m.Message = strings.Replace(m.Message, "cmp_1", ntf, 1)
	if got, err = reports(m, nil); err != nil || got[0].Address != "0" || got[1].Address != "1" {
		t.Errorf("%+v, %v", got[:2], err)
	}
	m.Message = `{"eventType":"Complaint","mail":{"tags":{"lemma_ntf":["` + ntf + `"]},"destination":["a@example.test","b@example.test"]}}`
	if got, err = reports(m, nil); err != nil || len(got) != 1 || got[0].Address != "" {
		t.Errorf("any of two recipients: %+v, %v", got, err)
	}
	m.Message = `{"notificationType":"Delivery","delivery":{"recipients":["a@example.test"]},"mail":{"messageId":"1"}}`
	if got, err = reports(m, nil); err != nil || len(got) != 1 || got[0].Type != events.TypeDelivered || got[0].CarrierID != "1" ||
		got[0].Notification != "" {
		t.Errorf("a feedback notification: %+v, %v", got, err)
	}
	for text, want := range map[string]error{
		"Successfully validated SNS topic for Amazon SES event publishing.": nil,
		"hello": sender.ErrUnreadable, `{"mail":1}`: sender.ErrUnreadable, `{`: sender.ErrUnreadable, `{}`: sender.ErrUnreadable,
		`{"notificationType":"AmazonSnsSubscriptionSucceeded","message":"Notifications are published."}`: nil,
		`{"eventType":"Open","open":{"timestamp":"today"}}`:                                              sender.ErrUnreadable,
	} {
		if got, err := reports(&sns.Message{Message: text}, nil); !errors.Is(err, want) || len(got) != 0 {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// A topic is subscribed and unsubscribed without reports. Without a topic, an account
// receives nothing.
func TestSubscription(t *testing.T) {
	t.Parallel()
	s := snstest.Start(t)
	if _, err := receiverOf(t, s, ""); !errors.Is(err, sender.ErrNoReceiver) {
		t.Error(err)
	}
	r, err := receiverOf(t, s, `,"topic_arn":"`+snstest.Topic+`"`)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{sns.Subscription, sns.Unsubscription} {
		body := s.Confirmation(kind, snstest.SubscribeURL)
		if got, err := r.Receive(t.Context(), sender.WebhookRequest{Body: body, At: time.Now()}); err != nil || len(got) != 0 {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
	}
	confirmed := slices.DeleteFunc(s.Requests(), func(u string) bool { return !strings.Contains(u, "ConfirmSubscription") })
	if len(confirmed) != 1 {
		t.Errorf("%q", confirmed)
	}
	other := strings.Replace(snstest.Topic, "lemma", "other", 1)
	if r, err = receiverOf(t, s, `,"topic_arn":"`+other+`"`); err != nil {
		t.Fatal(err)
	}
	body := s.Confirmation(sns.Subscription, snstest.SubscribeURL)
	if _, err := r.Receive(t.Context(), sender.WebhookRequest{Body: body, At: time.Now()}); !errors.Is(err, sender.ErrForeign) {
		t.Error(err)
	}
}

func FuzzReports(f *testing.F) {
	f.Add(`{"eventType":"Bounce","bounce":{"bouncedRecipients":[{}]},"mail":{"tags":{"lemma_ntf":[]}}}`)
	f.Add(`{"eventType":"Complaint","complaint":{"complainedRecipients":null}}`)
	f.Add(`{"eventType":"DeliveryDelay","deliveryDelay":{"timestamp":"2026-11-22T10:00:00Z"},"mail":{"destination":[""]}}`)
	f.Add(strings.Repeat(`{"mail":`, 5000))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := reports(&sns.Message{MessageID: "x", Message: text}, nil)
		if err != nil && !errors.Is(err, sender.ErrUnreadable) || len(got) > mostRecipients {
			t.Errorf("%d, %v", len(got), err)
		}
		for _, r := range got {
			if len(r.Detail) > 200 || r.ID == "" || r.Type == "" {
				t.Errorf("%+v", r)
			}
		}
	})
}
