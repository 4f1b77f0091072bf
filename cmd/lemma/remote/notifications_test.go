package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lemma/client"
)

// Each filter of a list is sent, and a row has what a person decides by.
func TestListNotifications(t *testing.T) {
	t.Parallel()
	var query string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.Query().Encode()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"data": []client.Notification{{ID: "ntf_1", Status: "orphaned", Reason: new("no_answer")}}})
	}))
	defer s.Close()
	var out bytes.Buffer
	command := notificationsListCommand{Campaign: "cmp_1", Resolution: "none", Channel: "email", Status: "orphaned", Delivery: "unknown",
		Reason: "no_answer", Profile: "c1", Address: "ada@example.com", Direct: true}
	if err := Run(t.Context(), command, Config{URL: s.URL, APIKey: "key"}, &out); err != nil {
		t.Fatal(err)
	}
	const want = "address=ada%40example.com&campaign_id=cmp_1&channel=email&delivery=unknown&limit=200&origin=direct&profile_key=c1" +
		"&reason=no_answer&resolution=none&status=orphaned"
	if query != want || !strings.Contains(out.String(), "ntf_1") || !strings.Contains(out.String(), "no_answer") {
		t.Errorf("%s\n%s", query, out.String())
	}
}

// A/B tests are listed by status and campaign.
func TestListIterations(t *testing.T) {
	t.Parallel()
	var query string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.Path + "?" + r.URL.Query().Encode()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"data": []client.IterationSummary{{ID: "itr_1", Status: "inconclusive",
			StatusReason: new("tie"), Allowed: []string{"select_winner", "stop"}}}})
	}))
	defer s.Close()
	var out bytes.Buffer
	command := iterationsListCommand{Campaign: "cmp_1", Status: "inconclusive"}
	if err := Run(t.Context(), command, Config{URL: s.URL, APIKey: "key"}, &out); err != nil {
		t.Fatal(err)
	}
	if query != "/v1/iterations?campaign_id=cmp_1&limit=200&status=inconclusive" || !strings.Contains(out.String(), "select_winner, stop") {
		t.Errorf("%s\n%s", query, out.String())
	}
}

// A message is sent from the command line, and the answer under a sealed key reports it.
func TestSendANotification(t *testing.T) {
	t.Parallel()
	var got client.NewNotification
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&got)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(client.SentNotification{Filtered: true,
			Notification: client.Notification{ID: "ntf_1", Status: "sent", CreatedAt: time.Now()}})
	}))
	defer s.Close()
	var out bytes.Buffer
	command := notificationsSendCommand{Address: "ada@example.com", Subject: "Hi", Text: "Hello", From: "shop@example.com", Key: "k"}
	if err := Run(context.Background(), command, Config{URL: s.URL, APIKey: "key"}, &out); err != nil {
		t.Fatal(err)
	}
	if got.To.Address != "ada@example.com" || got.Key != "k" || got.Content.Subject != "Hi" || got.From.Email != "shop@example.com" {
		t.Errorf("sent: %+v", got)
	}
	for _, part := range []string{"filtered by idempotency", "ntf_1"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in\n%s", part, out.String())
		}
	}
}
