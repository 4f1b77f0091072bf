// Package lmtp receives mails about bounces and complaints from the operator's mail
// server (LMTP, RFC 2033). It guarantees that the answer to a mail is 250 only after the
// mail has been handled: until then the mail server keeps it and sends it again.
//
// A mail is for the provider whose id is the local part of the address, or its part
// after a plus sign: bounces+prv_068v3k3p6nrkx8h2j4m6p8r0t2@bounces.shop.example.
//
// Only the beginning of a mail is kept: status and quoted headers stand before the quoted
// text. Connections, recipients and times are bounded. There is no authentication, so
// that only the mail server should reach the address. Package sender/dsn decides what a
// mail may prove.
package lmtp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"time"

	"github.com/emersion/go-smtp"
	"golang.org/x/net/netutil"

	"lemma"
)

// Bounds of a server.
const (
	mostMail        = 256 << 10 // bytes of a mail that are kept
	mostConnections = 32
	mostRecipients  = 50
	mostLine        = 64 << 10 // bytes of a command
	mostChunkLine   = 8 << 20  // bytes of a line of a mail that comes in chunks (BDAT), and of a command between them
	idleFor         = 5 * time.Minute
	handleFor       = 30 * time.Second // time to handle a mail for one recipient
)

// ErrNoProvider is returned by Receive for an address that no provider has.
var ErrNoProvider = errors.New("no provider receives mails at this address")

// Receive handles a mail for a provider, which is named by its public id. After an error
// other than ErrNoProvider the mail server sends the mail again.
type Receive func(ctx context.Context, provider string, mail []byte) error

// Server receives mails.
type Server struct {
	smtp  *smtp.Server
	conns conns
}

// New makes a server. It does not listen.
func New(receive Receive, log *slog.Logger) *Server {
	s := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &session{receive: receive, log: log, conn: c.Conn().(*conn)}, nil
	}))
	s.LMTP, s.Domain = true, "lemma"
	s.MaxRecipients, s.MaxLineLength = mostRecipients, 0 // conn limits lines
	s.ReadTimeout, s.WriteTimeout = idleFor, idleFor
	s.ErrorLog = slog.NewLogLogger(log.With("listener", "lmtp").Handler(), slog.LevelWarn)
	return &Server{smtp: s}
}

// Serve answers the connections of a listener until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	return s.smtp.Serve(listener{netutil.LimitListener(l, mostConnections), &s.conns})
}

// Shutdown waits for mails that are being received or handled until the end of ctx, and closes the
// connections, those without such a mail at once. The mail server sends a mail again whose connection
// is closed before its answer.
func (s *Server) Shutdown(ctx context.Context) error {
	s.conns.end()
	err := s.smtp.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		s.conns.close()
		return nil
	}
	return err
}

// session is the state of one connection.
type session struct {
	receive Receive
	log     *slog.Logger
	conn    *conn
	to      []recipient
}

type recipient struct{ address, provider string }

// Mail is part of smtp.Session, as the next three are. It begins a mail.
func (s *session) Mail(string, *smtp.MailOptions) error {
	s.conn.setBusy(true)
	return nil
}

// Reset ends a mail.
func (s *session) Reset() {
	s.to = nil
	s.conn.setBusy(false)
}

// Logout ends a connection.
func (s *session) Logout() error { return nil }

var errNoMailbox = &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: ErrNoProvider.Error()}

// Rcpt adds a recipient.
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	provider, ok := providerOf(to)
	if !ok {
		return errNoMailbox
	}
	s.to = append(s.to, recipient{to, provider})
	return nil
}

// providerOf is the provider that an address names. Mail servers may change the case of a
// local part.
func providerOf(address string) (string, bool) {
	local := strings.ToLower(address[:max(0, strings.LastIndexByte(address, '@'))])
	provider := local[strings.LastIndexByte(local, '+')+1:]
	_, ok := lemma.ParseID(lemma.PrefixProvider, provider)
	return provider, ok
}

// Data is part of smtp.Session. Servers of LMTP call LMTPData.
func (s *session) Data(io.Reader) error { return smtp.ErrServerClosed }

// LMTPData handles a mail for each provider of its recipients. A line of it may have any length: it
// is not kept as a line. Of a mail in chunks, the commands between them are lines, too.
func (s *session) LMTPData(r io.Reader, status smtp.StatusCollector) error {
	limit := int64(math.MaxInt64)
	if _, chunks := r.(*io.PipeReader); chunks {
		limit = mostChunkLine
	}
	s.conn.limit.Store(limit)
	defer s.conn.limit.Store(mostLine)
	mail, err := io.ReadAll(io.LimitReader(r, mostMail))
	if err != nil {
		return again
	}
	if _, err := io.Copy(io.Discard, r); err != nil { // the rest is not kept
		return again
	}
	handled := map[string]error{} // once for a provider, however many spellings of its address there are
	for _, to := range s.to {
		answer, known := handled[to.provider]
		if !known {
			answer = s.handle(to.provider, mail)
			handled[to.provider] = answer
		}
		status.SetStatus(to.address, answer)
	}
	return nil
}

var again = &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "the mail cannot be handled now"}

func (s *session) handle(provider string, mail []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), handleFor)
	defer cancel()
	switch err := s.receive(ctx, provider, mail); {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoProvider):
		return errNoMailbox
	default:
		s.log.Warn("handle a mail about a bounce", "provider_id", provider, "error", err)
		return again
	}
}
