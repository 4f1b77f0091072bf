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
