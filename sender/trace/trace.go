// Package trace records the conversation of a carrier with its server, for the test of a
// provider. It guarantees that no recorded text contains a secret of the account, plain or
// encoded (package redact), and that a trace has a bounded size and costs bounded work.
package trace

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"sync"
	"time"

	"lemma/sender/redact"
)

// Trace records one conversation. All methods are safe for concurrent use, and do nothing
// on nil.
type Trace struct {
	begun time.Time

	mu        sync.Mutex
	secrets   *redact.Secrets
	added     int  // secrets
	full      bool // too many secrets were added: nothing more is recorded
	steps     []Step
	bytes     int // of texts, as they were before secrets were removed, or after it if they are longer then
	truncated bool
}

// Step is a part of a conversation.
type Step struct {
	After time.Duration // since the begin of the trace
	Type  string
	Part  string // of what was sent or received
	Text  string
	Bytes int  // of a body: its size, also if Text is a part of it, or empty
	TLS   *TLS // of StepSecured
}

// Types of steps.
const (
	StepConnected = "connected" // Text is the server as the account names it
	StepSecured   = "secured"   // TLS is established
	StepSent      = "sent"
	StepReceived  = "received"
	StepFailed    = "failed" // Text is a sentence of a closed list
)

// Parts of what was sent or received.
const (
	PartLine   = "line"
	PartHeader = "header"
	PartBody   = "body"
)

// TLS describes an encrypted connection.
type TLS struct {
	Version, Cipher, Protocol string
	Names                     []string // of the server's certificate, at most 20
	Issuer                    string
	NotAfter                  time.Time // of the certificate
}

// Sizes of a trace.
const (
	mostStepText  = 16 << 10
	mostTraceText = 128 << 10
	mostSteps     = 300
	mostNames     = 20
	mostSecrets   = 200    // that are added: a server chooses how many headers it sends
	mostForms     = 10_000 // of all secrets: a header may be JSON with many strings

	// afterStep is how much of a text is searched behind what a step shows, so that a
	// secret at the end is recognised. A form of a secret is longer only if the secret
	// has more than 5 KiB.
	afterStep = 16 << 10
)

// New returns a trace that begins now. secrets is the JSON of an account.
func New(secrets []byte) *Trace { return &Trace{begun: time.Now(), secrets: redact.AllOf(secrets)} }

// Secret adds a text that must not be recorded, such as a token that the account
// received. The strings of a JSON value are added too, up to a
// bound, after which nothing more is recorded.
func (t *Trace) Secret(text string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.added++; t.added > mostSecrets || t.full {
		t.full = true
		return
	}
	t.full = t.secrets.Add(text) > mostForms
}

// Redact removes the secrets from a text.
func (t *Trace) Redact(text string) string {
	if t == nil {
		return text
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full && text != "" {
		return redact.Redacted
	}
	return t.secrets.Conversation(text)
}

// Connected records a connection to a server.
func (t *Trace) Connected(server string) { t.add(Step{Type: StepConnected, Text: server}) }

// Secured records TLS. The names and the issuer of the certificate are left out if
// hidden.
func (t *Trace) Secured(s tls.ConnectionState, hidden bool) {
	if t == nil {
		return
	}
	shown := &TLS{Version: tls.VersionName(s.Version), Cipher: tls.CipherSuiteName(s.CipherSuite), Protocol: s.NegotiatedProtocol}
	if len(s.PeerCertificates) > 0 && !hidden {
		shown.certificate(s.PeerCertificates[0])
	}
	t.add(Step{Type: StepSecured, TLS: shown})
}

func (s *TLS) certificate(c *x509.Certificate) {
	s.Names = append(s.Names, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		s.Names = append(s.Names, ip.String())
	}
	s.Names = s.Names[:min(len(s.Names), mostNames)]
	for i, name := range s.Names {
		s.Names[i] = strings.ToValidUTF8(name, "?")
	}
	s.Issuer, s.NotAfter = strings.ToValidUTF8(c.Issuer.String(), "?"), c.NotAfter
}

// Sent records a line or a header that was sent.
func (t *Trace) Sent(part, text string) { t.add(Step{Type: StepSent, Part: part, Text: text}) }

// SentBody records a body that was sent, of which only its text is shown, if any.
func (t *Trace) SentBody(text string, size int) {
	t.add(Step{Type: StepSent, Part: PartBody, Text: text, Bytes: size})
}

// Received records a line or a header that was received.
func (t *Trace) Received(part, text string) { t.add(Step{Type: StepReceived, Part: part, Text: text}) }

// ReceivedBody records a body that was received.
func (t *Trace) ReceivedBody(text string, size int) {
	t.add(Step{Type: StepReceived, Part: PartBody, Text: text, Bytes: size})
}

// Failed records why the conversation ended, as a sentence of a closed list.
func (t *Trace) Failed(sentence string) { t.add(Step{Type: StepFailed, Text: sentence}) }

func (t *Trace) add(s Step) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.After = time.Since(t.begun)
	if len(t.steps) >= mostSteps || t.bytes >= mostTraceText || t.full {
		t.truncated = true // before the search for secrets: a server chooses how much it sends
		return
	}
	most := min(mostStepText, mostTraceText-t.bytes)
	searched := min(len(s.Text), most)
	s.Text = strings.ToValidUTF8(t.redacted(s.Text), "?")
	if len(s.Text) > most {
		s.Text, t.truncated = strings.ToValidUTF8(s.Text[:most], ""), true
	}
	t.bytes += max(searched, len(s.Text))
	t.steps = append(t.steps, s)
}

// redacted removes the secrets before the text is cut, since a part of a secret is not
// recognised. Of a text that is too long to be searched, the end is left out: it may begin
// with a part of a secret.
func (t *Trace) redacted(text string) string {
	if len(text) <= mostStepText+afterStep {
		return t.secrets.Conversation(text)
	}
	t.truncated = true
	text = t.secrets.Conversation(text[:mostStepText+afterStep])
	return text[:max(0, len(text)-afterStep)]
}

// Steps returns what was recorded, and whether something was left out for its size.
func (t *Trace) Steps() (steps []Step, truncated bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Step{}, t.steps...), t.truncated
}
