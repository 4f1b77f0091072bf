package smtp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"lemma/dial"
	"lemma/sender"
)

// refusal is why there is no connection: always before any message.
type refusal struct {
	reason string
	code   int
	detail string // of a closed list, with the numbers of a reply
	cause  error  // for the log alone
}

func (r *refusal) receipt() sender.Receipt {
	definite := r.code >= 500 || r.reason == "forbidden_address" // both last until the settings change
	return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Definite: definite, Code: r.code,
		Reason: r.reason, Detail: r.detail, At: time.Now()}
}

func failed(reason string, err error) *refusal {
	if errors.Is(err, dial.ErrForbidden) {
		reason = "forbidden_address"
	}
	return &refusal{reason: reason, detail: dial.Cause(err), cause: err}
}

func (c *carrier) refused(reason string, a reply, err error) *refusal {
	if err != nil {
		return failed(reason, err)
	}
	return &refusal{reason: reason, code: a.code, detail: codes(a), cause: errors.New(sender.Detail(c.redact, string(a.text), ""))}
}

// dial connects and prepares a server for messages. All steps together have the time
// of one round trip.
func (c *carrier) dial(ctx context.Context) (*session, *refusal) {
	s, r := c.session(ctx)
	if r != nil {
		c.trace.Failed(r.detail)
	}
	if r != nil && ctx.Err() == nil {
		c.log.Info("no connection to the mail server", "provider_id", c.provider, "host", c.host, "port", c.port,
			"reason", r.reason, "code", r.code, "error", dial.Brief(c.redact.Error(r.cause)))
	}
	return s, r
}

func (c *carrier) session(ctx context.Context) (*session, *refusal) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := c.dialer.Dial(ctx, c.host, uint16(c.port))
	if err != nil {
		return nil, failed("connect_failed", err)
	}
	s := &session{conn: conn, timeout: c.timeout}
	s.record(c.trace, net.JoinHostPort(c.host, strconv.Itoa(c.port)), !c.showPrivate && dial.IsPrivate(conn))
	s.src = conn
	stop := context.AfterFunc(ctx, s.interrupt)
	r := c.introduce(ctx, s)
	if !stop() && r == nil {
		r = failed("connect_failed", context.Cause(ctx))
	}
	if r != nil {
		_ = s.conn.Close()
		return nil, r
	}
	s.hidden = false // the server has proven to be a mail server
	return s, nil
}

func (c *carrier) introduce(ctx context.Context, s *session) *refusal {
	if c.tlsMode == tlsImplicit {
		if r := c.secure(ctx, s); r != nil {
			return r
		}
	}
	s.arm()
	if a, err := s.answer(); err != nil || a.code != 220 {
		return c.refused("greeting_refused", a, err)
	}
	offers, r := c.hello(s)
	if r != nil {
		return r
	}
	if c.tlsMode == tlsStart {
		if offers, r = c.upgrade(ctx, s, offers); r != nil {
			return r
		}
	}
	s.setExtensions(offers)
	return c.login(s, offers)
}

// hello sends EHLO and returns the server's extensions: keyword to parameters.
func (c *carrier) hello(s *session) (map[string]string, *refusal) {
	a, err := s.command("EHLO " + c.helo)
	if err != nil || a.code != 250 {
		return nil, c.refused("ehlo_refused", a, err)
	}
	offers := map[string]string{}
	for i, line := range bytes.Split(a.text, []byte{'\n'}) {
		if i > 0 { // the first line is a greeting
			keyword, rest, _ := strings.Cut(string(line), " ")
			offers[strings.ToUpper(keyword)] = strings.ToUpper(rest)
		}
	}
	return offers, nil
}

func (s *session) setExtensions(offers map[string]string) {
	_, s.pipelining = offers["PIPELINING"]
	var size string
	size, s.sized = offers["SIZE"]
	s.limit, _ = strconv.Atoi(size) // SIZE alone, and SIZE 0, set no limit (RFC 1870, 4)
}

// upgrade is STARTTLS (RFC 3207). A server that does not offer it is not used, since
// an attacker may have removed the offer.
func (c *carrier) upgrade(ctx context.Context, s *session, offers map[string]string) (map[string]string, *refusal) {
	if _, offered := offers["STARTTLS"]; !offered {
		return nil, failed("tls_failed", dial.Sentence("the server does not offer STARTTLS, which the provider's settings require"))
	}
	if a, err := s.command("STARTTLS"); err != nil || a.code != 220 {
		return nil, c.refused("tls_failed", a, err)
	}
	s.drop()
	if r := c.secure(ctx, s); r != nil {
		return nil, r
	}
	return c.hello(s)
}

func (c *carrier) secure(ctx context.Context, s *session) *refusal {
	conn := tls.Client(s.conn, dial.TLS(c.pool.workspace, c.host, c.roots))
	if err := conn.HandshakeContext(ctx); err != nil {
		return failed("tls_failed", err)
	}
	s.trace.Secured(conn.ConnectionState(), s.hidden)
	s.clock.Lock()
	defer s.clock.Unlock()
	s.conn, s.src = conn, conn
	return nil
}

// login authenticates, if the account has a username. A password is sent over TLS or
// to a loopback address only.
func (c *carrier) login(s *session, offers map[string]string) *refusal {
	if c.username == "" {
		return nil
	}
	if !private(s.conn) {
		return failed("auth_failed", dial.Sentence("a password is sent over TLS or to this machine only"))
	}
	var a reply
	var err error
	switch mechanisms := strings.Fields(offers["AUTH"]); {
	case slices.Contains(mechanisms, "PLAIN"):
		a, err = s.secretCommand("AUTH PLAIN ", encode("\x00"+c.username+"\x00"+c.password))
	case slices.Contains(mechanisms, "LOGIN"):
		a, err = c.loginInSteps(s)
	default:
		return failed("auth_failed", dial.Sentence("the server offers neither AUTH PLAIN nor AUTH LOGIN"))
	}
	if err != nil || a.code != 235 {
		return c.refused("auth_failed", a, err)
	}
	return nil
}

func (c *carrier) loginInSteps(s *session) (reply, error) {
	if a, err := s.command("AUTH LOGIN"); err != nil || a.code != 334 {
		return a, err
	}
	if a, err := s.secretCommand("", encode(c.username)); err != nil || a.code != 334 {
		return a, err
	}
	return s.secretCommand("", encode(c.password))
}

func private(conn net.Conn) bool {
	if _, ok := conn.(*tls.Conn); ok {
		return true
	}
	addr, ok := conn.RemoteAddr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
