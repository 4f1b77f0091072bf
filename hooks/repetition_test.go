package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/ses"
	"lemma/sender/ses/sns"
	"lemma/sender/ses/sns/snstest"
	"lemma/sender/wire"
)

// A message of Amazon SNS contains its signature: a repeated one is answered without a
// check, for the provider as it is configured, and only if it was stored.
func TestRepeatedBodies(t *testing.T) {
	b := setup(t)
	topic := snstest.Start(t)
	h := New(Deps{Pool: b.Pool, Providers: b.accounts,
		PublicURLs: func() []string { return []string{"https://lemma.example"} }, Log: slog.New(slog.DiscardHandler),
		Kinds: []sender.Kind{ses.KindOver(wire.Operator{}, sns.NewClient(sns.Options{Roots: topic.Roots, Transport: topic.Transport}))}})
	config := func(topic string) json.RawMessage {
		return fmt.Appendf(nil, `{"region":"eu-central-1","configuration_set":"lemma","topic_arn":%q}`, topic)
	}
	secrets := json.RawMessage(`{"access_key_id":"AKIDEXAMPLE123456789","secret_access_key":"secret"}`)
	made, err := b.accounts.Create(t.Context(), b.Workspace, providers.NewProvider{ID: lemma.NewID(), Name: "ses", Kind: "ses",
		Config: config(snstest.Topic), Secrets: secrets})
	b.Must(err)
	receive := func(body []byte) error {
		r := httptest.NewRequest(http.MethodPost, "/hooks/ses/x", strings.NewReader(string(body)))
		return h.Receive(r, "ses", lemma.FormatID(lemma.PrefixProvider, made.ID))
	}
	event := fmt.Sprintf(`{"eventType":"Send","mail":{"messageId":"m","destination":["a@b.example"],"tags":{"lemma_ntf":[%q]}}}`,
		b.notification(1))
	body := topic.Notification("1", event, time.Now())
	forged := []byte(strings.Replace(string(body), "Send", "Open", 1))

	b.Exec(`alter table provider_events rename to away`)
	for range 2 {
		if err := receive(body); err == nil {
			t.Error("it was answered, and not stored")
		}
	}
	b.Exec(`alter table away rename to provider_events`)
	for range 3 {
		b.Must(receive(body))
		if err := receive(forged); !errors.Is(err, sender.ErrForged) {
			t.Errorf("a changed body: %v", err)
		}
	}
	if rows := b.rows(); len(rows) != 1 {
		t.Errorf("stored: %v", rows)
	}
	if n := value(h.metrics.duplicates.WithLabelValues("ses")); n != 2 {
		t.Errorf("%v duplicates are counted", n)
	}

	_, err = b.accounts.Update(t.Context(), b.Workspace, made.ID, nil, providers.Patch{Config: config(snstest.Topic + "2"),
		Secrets: secrets})
	b.Must(err)
	h.accounts.fresh(made.ID, accountAge).readAt = time.Now().Add(-accountAge - time.Second)
	if err := receive(body); !errors.Is(err, sender.ErrForeign) {
		t.Errorf("of the topic before: %v", err)
	}
}
