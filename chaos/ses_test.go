package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"lemma/sender"
	"lemma/sender/ses"
	"lemma/sender/ses/sns"
	"lemma/sender/ses/sns/snstest"
	"lemma/sender/wire"
	"lemma/server"
)

// openSES makes Amazon SES over HTTP/2, a provider for it, and the API that receives its
// events. They come as signed messages of Amazon SNS. The API is in this process, since
// only a test can have the certificates of SNS.
func (h *env) openSES() *reporter {
	h.t.Helper()
	topic := snstest.Start(h.t)
	client := sns.NewClient(sns.Options{Roots: topic.Roots, Transport: topic.Transport})
	api, err := server.New(server.Deps{Pool: h.Pool, Box: h.Box, Log: slog.New(slog.DiscardHandler),
		Kinds: []sender.Kind{ses.KindOver(wire.Operator{AllowPrivate: true}, client)}}, server.Config{PublicURL: "https://lemma.example"})
	h.Must(err)
	public := httptest.NewServer(api.API)
	h.t.Cleanup(public.Close)

	r := newReporter()
	r.atOnce, r.onlyOwn = 32, true
	account := fmt.Sprintf(`{"region": "eu-central-1", "endpoint": %q, "configuration_set": "lemma", "topic_arn": %q, "timeout_seconds": 60}`,
		r.serveTLS(h.t, r.sendEmail), snstest.Topic)
	hook := h.openReporter(r, public.URL, "ses", account, `{"access_key_id": "AKIDEXAMPLE123456789", "secret_access_key": "secret"}`)
	r.send = func(e event) bool {
		header := http.Header{"Content-Type": {"text/plain; charset=UTF-8"}, "X-Amz-Sns-Message-Type": {"Notification"}}
		status, err := post(hook, header, topic.Notification(e.ID, deliveryOf(e), time.Now()))
		return err == nil && status == http.StatusOK
	}
	r.publish(h.t)
	return r
}

// sendEmail is SendEmail of Amazon SES. It accepts each message.
func (r *reporter) sendEmail(w http.ResponseWriter, request *http.Request) {
	var m struct {
		Destination struct{ ToAddresses []string }
		EmailTags   []struct{ Name, Value string }
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the worker is gone: no whole request
	}
	if json.Unmarshal(body, &m) != nil || len(m.Destination.ToAddresses) != 1 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a := acceptance{delivery: delivery{recipient: m.Destination.ToAddresses[0]}}
	for _, tag := range m.EmailTags {
		switch tag.Name {
		case "lemma_ntf":
			a.notification = tag.Value
		case "lemma_attempt":
			a.attempt, _ = strconv.Atoi(tag.Value) // 0 is no attempt: verify finds it
		}
	}
	r.accept(request, a)
	_, _ = fmt.Fprintf(w, `{"MessageId": "%s/%d"}`, a.notification, a.attempt) // a worker that is gone needs no answer
}

// deliveryOf is an event as Amazon SES publishes it.
func deliveryOf(e event) string {
	at := e.OccurredAt.UTC().Format("2006-01-02T15:04:05.000Z")
	return fmt.Sprintf(`{"eventType": "Delivery", "mail": {"timestamp": %[1]q, "messageId": "%[2]s/%[3]d", "destination": [%[4]q],
		"tags": {"lemma_ntf": [%[2]q], "lemma_attempt": ["%[3]d"]}},
		"delivery": {"timestamp": %[1]q, "recipients": [%[4]q], "smtpResponse": "250 2.6.0 Message received"}}`,
		at, e.Notification, e.Attempt, e.of.recipient)
}
