package gateway

import (
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/sender"
	"lemma/signing"
)

// A body with a member that the format does not have, or about no message, is refused, and
// the refusal names the member.
func TestUnknownMembersAreNamed(t *testing.T) {
	t.Parallel()
	key := make([]byte, 32)
	for body, pointer := range map[string]string{
		`{"type":"delivered","notificationId":"ntf_x"}`:                                    "/notificationId",
		`{"type":"delivered","Notification_ID":"ntf_x"}`:                                   "/Notification_ID",
		`{"type":"delivered","notification_id":"ntf_x","a/b":1}`:                           "/a~1b",
		`{"events":[{"type":"opened","notification_id":"n"},{"type":"opened","to":"a"}]}`:  "/events/1/to",
		`{"type":"unsubscribed"}`:                                                          "/notification_id",
		`{"type":"delivered","carrier_id":"m-1"}`:                                          "/notification_id",
		`{"events":[{"type":"delivered"}]}`:                                                "/events/0/notification_id",
		`{"type":"blocked","notification_id":"n"}`:                                         "/type",
		`{"type":"unsubscribed","address":"ada@shop.example"}`:                             "",
		`{"type":"delivered","notification_id":"of another system"}`:                       "",
		`{"type":"delivered","notification_id":"n","x` + strings.Repeat("y", 200) + `":1}`: "/x" + strings.Repeat("y", 99) + "...",
	} {
		header := http.Header{}
		signing.Set(header, [][]byte{key}, "e", time.Now(), []byte(body))
		_, err := NewReceiver(key, lemma.Email).Receive(t.Context(), sender.WebhookRequest{Header: header, Body: []byte(body), At: time.Now()})
		got := ""
		if fault, ok := errors.AsType[*lemma.Error](err); ok && errors.Is(err, sender.ErrUnreadable) {
			got = fault.Fields[0].Pointer
		}
		if got != pointer || (err == nil) != (pointer == "") {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// A body with too many events is refused before they are in memory. The test is not parallel,
// since it counts what is allocated.
func TestTooManyEventsAreNotInMemory(t *testing.T) { //nolint:paralleltest
	key, header := make([]byte, 32), http.Header{}
	body := []byte(`{"events":[` + strings.Repeat(`{},`, 300_000) + `{}]}`)
	signing.Set(header, [][]byte{key}, "e", time.Now(), body)
	r := NewReceiver(key, lemma.Email)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.Receive(t.Context(), sender.WebhookRequest{Header: header, Body: body, At: time.Now()})
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, sender.ErrUnreadable) || n > 4<<20 {
		t.Errorf("%v, with %d bytes", err, n)
	}
}

// An event without a notification is about its address: a request with one that cannot be read
// is refused, and the refusal names the item.
func TestAddressesAreRead(t *testing.T) {
	t.Parallel()
	key := make([]byte, 32)
	ntf := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	for _, c := range []struct {
		channel       lemma.Channel
		body, pointer string
	}{
		{lemma.SMS, `{"type":"unsubscribed","address":"4930123456"}`, ""},
		{lemma.SMS, `{"type":"unsubscribed","address":"tel:+49-30-123456"}`, ""},
		{lemma.SMS, `{"type":"unsubscribed","address":"030 123456"}`, "/address"},
		{lemma.SMS, `{"type":"unsubscribed","address":" "}`, "/address"},
		{lemma.SMS, `{"type":"delivered","address":"ada@shop.example"}`, "/address"},
		{lemma.SMS, `{"type":"unsubscribed","address":"030 123456","notification_id":"of another system"}`, "/address"},
		{lemma.SMS, `{"type":"unsubscribed","address":"030 123456","notification_id":"` + ntf + `"}`, ""},
		{lemma.SMS, `{"events":[{"type":"bounced","address":"+4930123456"},{"type":"bounced","address":"12345"}]}`, "/events/1/address"},
		{lemma.Email, `{"type":"bounced","address":"Ada <ada@shop.example.>"}`, ""},
		{lemma.Email, `{"type":"bounced","address":"ada"}`, "/address"},
		{lemma.Push, `{"type":"bounced","address":"ada"}`, ""},
		{lemma.Push, `{"type":"bounced","address":"a\nb"}`, "/address"},
	} {
		header := http.Header{}
		signing.Set(header, [][]byte{key}, "e", time.Now(), []byte(c.body))
		_, err := NewReceiver(key, c.channel).Receive(t.Context(), sender.WebhookRequest{Header: header, Body: []byte(c.body), At: time.Now()})
		got := ""
		if fault, ok := errors.AsType[*lemma.Error](err); ok && errors.Is(err, sender.ErrUnreadable) {
			got = fault.Fields[0].Pointer
		}
		if got != c.pointer || (err == nil) != (c.pointer == "") {
			t.Errorf("%s %s: %v", c.channel, c.body, err)
		}
	}
}

// Events without ids have that of the request: a long one is not repeated for each.
func TestALongIDOfARequest(t *testing.T) {
	t.Parallel()
	key, header := make([]byte, 32), http.Header{}
	body := `{"events":[{"type":"opened","notification_id":"a"},{"type":"opened","notification_id":"b"}]}`
	signing.Set(header, [][]byte{key}, strings.Repeat("i", 10_000), time.Now(), []byte(body))
	got, err := NewReceiver(key, lemma.SMS).Receive(t.Context(), sender.WebhookRequest{Header: header, Body: []byte(body), At: time.Now()})
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if a, b := got[0].ID, got[1].ID; len(a) > 100 || !strings.HasSuffix(a, "/0") || b != strings.TrimSuffix(a, "0")+"1" {
		t.Errorf("the ids are %.100q and %.100q", a, b)
	}
}

// FuzzReceive: any body that is signed is read or refused, and each report has an id.
func FuzzReceive(f *testing.F) {
	for _, seed := range []string{
		`{"type":"delivered","notification_id":"ntf_x","attempt":1,"occurred_at":"2026-07-01T12:00:00Z"}`,
		`{"events":[{"type":"bounced","code":550},{"id":"a","type":"opened"}]}`, `{"type":"delivered","events":[{"type":"opened"}]}`,
		`{}`, `[]`, `null`, ``, `{"events":[null]}`, `{"type":"delivered","attempt":1e300}`, "{\"type\":\"delivered\",\"id\":\"\\u0000\"}",
	} {
		f.Add([]byte(seed))
	}
	key := make([]byte, 32)
	r := NewReceiver(key, lemma.SMS)
	f.Fuzz(func(t *testing.T, body []byte) {
		header := http.Header{}
		signing.Set(header, [][]byte{key}, "e", time.Now(), body)
		reports, err := r.Receive(t.Context(), sender.WebhookRequest{Header: header, Body: body, At: time.Now()})
		if err == nil && len(reports) == 0 {
			t.Error("no reports and no error")
		}
		for _, one := range reports {
			if one.ID == "" || one.OccurredAt.IsZero() {
				t.Errorf("%+v", one)
			}
		}
		if reports, err := r.Receive(t.Context(), sender.WebhookRequest{Header: header, Body: append(body, ' '), At: time.Now()}); err == nil {
			t.Errorf("another body is read: %+v", reports)
		}
	})
}
