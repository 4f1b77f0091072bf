// Package trace records the conversation of a carrier with its server, for the test of a
// provider. It guarantees that no recorded text contains a secret of the account, plain or
// encoded, and that a trace has a bounded size.
package trace

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"strings"
	"sync"
	"time"
)

// Trace records one conversation. All methods are safe for concurrent use, and do nothing
// on nil.
type Trace struct {
	begun time.Time

	mu        sync.Mutex
	secrets   redactor
	steps     []Step
	bytes     int
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
)

// New returns a trace that begins now. secrets is the JSON of an account.
func New(secrets []byte) *Trace { return &Trace{begun: time.Now(), secrets: newRedactor(secrets)} }

// Secret adds a text that must not be recorded, such as a token that the account
// received. The strings of a JSON value are added too.
func (t *Trace) Secret(text string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.secrets.add(text)
	var value any
	if json.Unmarshal([]byte(text), &value) == nil {
		t.secrets.addAll(value)
	}
}

// Redact removes the secrets from a text.
func (t *Trace) Redact(text string) string {
	if t == nil {
		return text
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.secrets.text(text)
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
	s.Text = strings.ToValidUTF8(t.secrets.text(s.Text), "?") // before it is cut, since a part of a secret is not recognised
	if len(t.steps) >= mostSteps || t.bytes >= mostTraceText {
		t.truncated = true
		return
	}
	if most := min(mostStepText, mostTraceText-t.bytes); len(s.Text) > most {
		s.Text, t.truncated = strings.ToValidUTF8(s.Text[:most], ""), true
	}
	t.bytes += len(s.Text)
	t.steps = append(t.steps, s)
}

// Steps returns what was recorded, and whether something was left out for its size.
func (t *Trace) Steps() (steps []Step, truncated bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Step{}, t.steps...), t.truncated
}
