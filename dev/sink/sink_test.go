package sink_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/smtp"
	"strings"
	"testing"

	"lemma/dev/sink"
)

func start(t *testing.T) (address, web string, stop func() sink.Stats) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- sink.Run(ctx, listener, &out, hooks) }()
	return listener.Addr().String(), "http://" + hooks.Addr().String(), func() (s sink.Stats) {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(out.Bytes(), &s); err != nil {
			t.Error(err)
		}
		return s
	}
}

func mail(t *testing.T, address, to, body string) {
	t.Helper()
	if err := smtp.SendMail(address, nil, "a@example.test", []string{to}, []byte(body)); err != nil {
		t.Fatal(err)
	}
}

func TestCountsEachNumber(t *testing.T) {
	t.Parallel()
	address, _, stop := start(t)
	for _, n := range []int{1, 2, 2, 5, 2_000_000} {
		mail(t, address, fmt.Sprintf("user%d@example.test", n), "hello\r\n..\r\n.dot\r\n")
	}
	mail(t, address, "user@example.test", "")
	got, err := sink.Ask(address, 1, 5)
	if err != nil {
		t.Fatal(err)
	}
	if got.Messages != 6 || got.Distinct != 4 || got.Duplicates != 1 || got.Missing != 2 {
		t.Errorf("%+v, want 6 messages, 4 numbers, 1 duplicate, 2 missing of 1 to 5", got)
	}
	if last := stop(); last.Messages != 6 || last.Missing != 2_000_000-4 {
		t.Errorf("the last line is %+v", last)
	}
}

func TestResetForgets(t *testing.T) {
	t.Parallel()
	address, _, stop := start(t)
	defer stop()
	mail(t, address, "user1@example.test", "x")
	if err := sink.Reset(address); err != nil {
		t.Fatal(err)
	}
	if got, err := sink.Ask(address, 1, 1); err != nil || got.Messages != 0 || got.Missing != 1 {
		t.Errorf("%+v, %v after a reset", got, err)
	}
}

func TestCountsWebhooksByID(t *testing.T) {
	t.Parallel()
	address, web, stop := start(t)
	defer stop()
	for _, id := range []string{"msg_1", "msg_2", "msg_1"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web+sink.WebhookPath, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("webhook-id", id)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	if got, err := sink.Ask(address, 1, 0); err != nil || got.Messages != 3 || got.Distinct != 2 || got.Duplicates != 1 || got.Bytes != 6 {
		t.Errorf("%+v, %v after two webhooks, one of them twice", got, err)
	}
}
