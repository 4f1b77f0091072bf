package fcm

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

func messages(n int) (all []sender.Message) {
	for i := range n {
		all = append(all, sender.Message{Notification: fmt.Sprintf("ntf_%d", i), Attempt: 1, To: device(i), Text: "x"})
	}
	return all
}

func anything(sendertest.Received) bool { return true }

func serveMessages(t *testing.T, reply func() sendertest.Reply) *sendertest.HTTPServer {
	return sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply { return reply() })
}

func accepts() sendertest.Reply { return sendertest.Reply{Body: named} }

// All messages of an account have one token, and one request for it.
func TestOneTokenRequest(t *testing.T) {
	t.Parallel()
	tokens, server := serveTokens(t, gives), serveMessages(t, accepts)
	c := accountAt(t, server, tokens, "")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for _, r := range c.Send(t.Context(), messages(20)) {
				if r.Outcome != sender.Accepted {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	all.Wait()
	if n := len(tokens.Received(anything)); n != 1 {
		t.Errorf("%d token requests, want 1", n)
	}
}

// A server that repeats the access token does not make it a detail.
func TestARepeatedTokenIsRemoved(t *testing.T) {
	t.Parallel()
	server := sendertest.ServeHTTPS(t, true, func(r sendertest.Received) sendertest.Reply {
		return refuse(403, "PERMISSION_DENIED", "", "no "+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	})
	c := accountAt(t, server, serveTokens(t, gives), "")
	if r := c.Send(t.Context(), messages(1))[0]; r.Detail != "PERMISSION_DENIED: no [redacted]" {
		t.Errorf("%+v", r)
	}
}

// A token that has expired, or that FCM has refused, is replaced.
func TestTokenIsReplaced(t *testing.T) {
	t.Parallel()
	refused := true
	tokens := serveTokens(t, gives)
	server := serveMessages(t, func() sendertest.Reply {
		if refused {
			refused = false
			return refuse(401, "UNAUTHENTICATED", "", "Invalid Credentials")
		}
		return accepts()
	})
	c := accountAt(t, server, tokens, `,"max_requests":1`)
	for i, want := range []struct {
		outcome sender.Outcome
		tokens  int
	}{{sender.NotAccepted, 1}, {sender.Accepted, 2}, {sender.Accepted, 2}, {sender.Accepted, 3}} {
		if i == 3 {
			c.tokens.until = time.Now().Add(-time.Second)
		}
		r := c.Send(t.Context(), messages(1))[0]
		if n := len(tokens.Received(anything)); r.Outcome != want.outcome || n != want.tokens {
			t.Errorf("message %d: %+v with %d token requests, want %v", i, r, n, want)
		}
	}
	if until := time.Until(c.tokens.until); until < 50*time.Minute || until > 55*time.Minute {
		t.Errorf("a token of an hour is kept for %v", until)
	}
}

// A token request that fails is a failure of the provider. No message was sent, so that no
// outcome is unknown.
func TestFailedTokenRequests(t *testing.T) {
	t.Parallel()
	reply := func(status int, body string) *sendertest.Reply { return &sendertest.Reply{Status: status, Body: body} }
	const timeframe = `{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a short-lived token ` +
		`(60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim."}`
	refusal, unavailable := wire.OfProvider("credentials_refused", true), wire.OfProvider("token_unavailable", false)
	for name, c := range map[string]struct {
		reply *sendertest.Reply
		want  sender.Receipt
	}{
		"a key that was deleted": {reply(400, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`), refusal},
		"an unknown account": {reply(400, `{"error":"invalid_grant","error_description":"Invalid grant: account not found"}`),
			refusal},
		"an unknown client":           {reply(401, `{"error":"invalid_client"}`), refusal},
		"a refusal without a body":    {reply(403, ``), refusal},
		"a wrong clock":               {reply(400, timeframe), wire.OfProvider("clock_skew", false)},
		"a quota":                     {reply(429, ``), wire.OfProvider("throttled", false)},
		"a redirect":                  {reply(302, ``), wire.OfProvider("redirected", false)},
		"a server error":              {reply(500, `{"error":"internal_failure"}`), unavailable},
		"503":                         {reply(503, ``), unavailable},
		"nonsense":                    {reply(200, `{]`), unavailable},
		"no token":                    {reply(200, `{"token_type":"Bearer","expires_in":3600}`), unavailable},
		"a token of two lines":        {reply(200, `{"access_token":"a\nb","token_type":"Bearer","expires_in":3600}`), unavailable},
		"a token of another type":     {reply(200, `{"access_token":"a","token_type":"mac","expires_in":3600}`), unavailable},
		"a token that has no end":     {reply(200, `{"access_token":"a","token_type":"Bearer"}`), unavailable},
		"a connection that is lost":   {&sendertest.Reply{Drop: true}, wire.OfProvider("connection_lost", false)},
		"an answer that does not end": {&sendertest.Reply{Hang: true}, wire.OfProvider("timeout", false)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tokens, server := serveTokens(t, func() *sendertest.Reply { return c.reply }), serveMessages(t, accepts)
			carrier := accountAt(t, server, tokens, `,"timeout_seconds":1,"max_requests":1`)
			receipts := carrier.Send(t.Context(), messages(60))
			outcomes := map[sender.Outcome]int{}
			for _, r := range receipts {
				outcomes[r.Outcome]++
				if !r.Provider || r.Definite != c.want.Definite || r.Reason != c.want.Reason || r.At.IsZero() {
					t.Errorf("%+v, want %+v", r, c.want)
				}
			}
			if outcomes[sender.NotAccepted] != 1 || outcomes[sender.NotCalled] != 59 {
				t.Errorf("outcomes: %v", outcomes)
			}
			if a, b := len(tokens.Received(anything)), len(server.Received(anything)); a != 1 || b != 0 {
				t.Errorf("%d token requests and %d messages, want 1 and 0", a, b)
			}
		})
	}
}

// A token server without a listener is a failure of the provider too.
func TestNoTokenServer(t *testing.T) {
	t.Parallel()
	tokens, server := serveTokens(t, gives), serveMessages(t, accepts)
	nowhere := sendertest.ServeHTTPS(t, false, nil)
	tokens.URL = nowhere.URL
	nowhere.Stop()
	c := accountAt(t, server, tokens, "")
	if r := c.Send(t.Context(), messages(1))[0]; r.Outcome != sender.NotAccepted || !r.Provider || r.Reason != "connect_failed" {
		t.Errorf("%+v", r)
	}
	if r := c.Send(t.Context(), messages(1))[0]; r.Outcome != sender.NotCalled || !r.Provider || r.Reason != "connect_failed" {
		t.Errorf("a moment later: %+v", r)
	}
}

// A call that ends while its token is requested has sent nothing. It does not end the
// wait of others, and one request is under way at a time.
func TestCallEndsDuringATokenRequest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	first := true
	tokens := serveTokens(t, func() *sendertest.Reply {
		if first {
			first = false
			cancel()
			return &sendertest.Reply{Hang: true}
		}
		return nil
	})
	c := accountAt(t, serveMessages(t, accepts), tokens, "")
	var other sync.WaitGroup
	other.Go(func() {
		<-ctx.Done()
		if r := c.Send(t.Context(), messages(1))[0]; r.Outcome != sender.Accepted {
			t.Errorf("of another call: %+v", r)
		}
	})
	if r := c.Send(ctx, messages(1))[0]; r.Outcome != sender.NotCalled || r.Provider || r.Reason != "call_ended" {
		t.Errorf("%+v", r)
	}
	other.Wait()
}
