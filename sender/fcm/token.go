package fcm

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma/processors"
	"lemma/sender"
	"lemma/sender/redact"
	"lemma/sender/trace"
	"lemma/sender/wire"
)

const (
	scope     = "https://www.googleapis.com/auth/firebase.messaging"
	grantType = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	jwtFor    = time.Hour       // the longest that Google accepts
	renew     = 5 * time.Minute // before a token expires
	tokenWait = time.Second     // after a failure, before the next token request
	mostToken = 8 << 10         // bytes
	mostLasts = 86_400          // seconds
)

// tokens has the access token of an account.
type tokens struct {
	client    *wire.Client
	account   serviceAccount
	workspace uuid.UUID
	trace     *trace.Trace    // nil: none
	redact    *redact.Secrets // learns the tokens
	request   chan struct{}   // contains a token while no request is under way

	mu      sync.Mutex
	token   string
	until   time.Time
	failure sender.Receipt // of the last request
	failed  time.Time      // zero: it succeeded
}

func newTokens(client *wire.Client, account serviceAccount, a sender.Account) *tokens {
	t := &tokens{client: client, account: account, workspace: a.WorkspaceID, trace: a.Trace, redact: a.Redact, request: make(chan struct{}, 1)}
	t.request <- struct{}{}
	return t
}

// get returns the access token, or the receipt of a message that has none. Others wait
// while a token is requested.
func (t *tokens) get(ctx context.Context) (string, *sender.Receipt) {
	if token, failure := t.kept(); token != "" || failure != nil {
		return token, failure
	}
	select {
	case <-t.request:
		defer func() { t.request <- struct{}{} }()
	case <-ctx.Done():
		return "", &sender.Receipt{Outcome: sender.NotCalled, Reason: "call_ended", At: time.Now()}
	}
	if token, failure := t.kept(); token != "" || failure != nil {
		return token, failure
	}
	token, lasts, r := t.fetch(ctx)
	r.At = time.Now()
	return t.keep(token, lasts, r)
}

// kept is the token, the receipt for a request that failed a moment ago, or neither.
func (t *tokens) kept() (string, *sender.Receipt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.token != "" && now.Before(t.until) {
		return t.token, nil
	}
	if now.Before(t.failed.Add(tokenWait)) {
		r := t.failure
		r.Outcome, r.At = sender.NotCalled, now
		return "", &r
	}
	return "", nil
}

func (t *tokens) keep(token string, lasts time.Duration, r sender.Receipt) (string, *sender.Receipt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if token != "" {
		t.token, t.until, t.failed = token, r.At.Add(lasts-min(renew, lasts/2)), time.Time{}
		return token, nil
	}
	if r.Provider {
		t.failure, t.failed = r, r.At
	}
	return "", &r
}

// drop removes a token that FCM has refused.
func (t *tokens) drop(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == token {
		t.token = ""
	}
}

// fetch requests a token. Without one, the receipt has an outcome.
func (t *tokens) fetch(ctx context.Context) (token string, lasts time.Duration, r sender.Receipt) {
	jwt, err := t.sign()
	if err != nil {
		return "", 0, failedToken("token_unavailable", err.Error())
	}
	t.trace.Secret(jwt) // the server may repeat it
	form := url.Values{"grant_type": {grantType}, "assertion": {jwt}}
	a, none := t.client.Post(ctx, wire.Request{URL: t.account.tokenURI, Body: []byte(form.Encode()),
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "User-Agent": {"Lemma"}}})
	if none != nil {
		return "", 0, withoutToken(*none)
	}
	var body struct {
		Token       string `json:"access_token"`
		Type        string `json:"token_type"`
		Expires     int    `json:"expires_in"`
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	readable := a.Whole && json.Unmarshal(a.Body, &body) == nil
	if a.Status < 300 && readable && isToken(body.Token) && strings.EqualFold(body.Type, "bearer") && body.Expires > 0 {
		t.redact.Learn(body.Token) // FCM may repeat it
		return body.Token, time.Duration(min(body.Expires, mostLasts)) * time.Second, sender.Receipt{}
	}
	r = failedToken(tokenReason(a.Status, body.Description), a.Text(strings.TrimPrefix(body.Error+": "+body.Description, ": "), ""))
	r.Code, r.RetryAfter, r.Definite = a.Status, a.RetryAfter(), r.Reason == "credentials_refused"
	return "", 0, r
}

// isToken accepts what can be part of a header.
func isToken(s string) bool {
	return s != "" && len(s) <= mostToken && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// withoutToken is the receipt of a message whose token request has no answer. The message
// itself was not sent, so that its outcome is known.
func withoutToken(r sender.Receipt) sender.Receipt {
	if r.Outcome == sender.Unknown && r.Reason == "call_ended" {
		r.Outcome = sender.NotCalled
	} else if r.Outcome != sender.NotCalled {
		r.Outcome, r.Provider = sender.NotAccepted, true
	}
	return r
}

func failedToken(reason, detail string) sender.Receipt {
	return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: reason, Detail: sender.Detail(nil, detail, "")}
}

func tokenReason(status int, description string) string {
	switch {
	case status >= 300 && status < 400:
		return "redirected"
	case status == http.StatusTooManyRequests:
		return "throttled"
	case status == http.StatusBadRequest && strings.Contains(description, "reasonable timeframe"):
		return "clock_skew"
	case status == http.StatusBadRequest, status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "credentials_refused"
	}
	return "token_unavailable"
}

// signatures bounds those that are computed at a time.
var signatures = processors.New()

// sign signs on a processor of the workspace, since the server decides how long a token lasts.
func (t *tokens) sign() (string, error) {
	defer signatures.Enter(t.workspace)()
	return t.account.sign(time.Now())
}

// sign makes the assertion of a token request (RFC 7523, 2.1).
func (a serviceAccount) sign(now time.Time) (string, error) {
	header, _ := json.Marshal(map[string]string{"alg": "RS256", "typ": "JWT", "kid": a.keyID})
	claims, _ := json.Marshal(map[string]any{"iss": a.email, "scope": scope, "aud": a.tokenURI.String(),
		"iat": now.Unix(), "exp": now.Add(jwtFor).Unix()})
	signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.key, crypto.SHA256, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign the token request: %w", err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}
