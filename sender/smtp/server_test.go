package smtp

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/sender"
)

// Answers of a server that are not text.
const (
	hang   = "(hang)"   // sends nothing more, and keeps the connection
	drip   = "(drip)"   // sends an answer without an end, slowly
	hangUp = "(hangup)" // closes the connection; text before it is sent first
)

// server speaks SMTP and answers as a test wants. It keeps every message whose
// final dot it saw, whatever it answered.
type server struct {
	address string
	offers  string // what EHLO answers behind the first line: "PIPELINING SIZE=100"
	tls     *tls.Config
	implied bool // TLS from the first byte

	// answer overrides an answer: to a verb (or "greeting", "body"), the nth
	// since the server began, from 1. An empty string is the usual answer.
	answer func(verb string, n int) string

	mu       sync.Mutex
	seen     map[string]int // verbs
	commands []string       // as received
	bodies   []string       // with the final dot off and dots unstuffed
	conns    int
	held     []net.Conn
}

func serve(t *testing.T, s *server) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address, s.seen = listener.Addr().String(), map[string]int{}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns++
			s.held = append(s.held, conn)
			s.mu.Unlock()
			all.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.mu.Lock()
		for _, c := range s.held {
			_ = c.Close()
		}
		s.mu.Unlock()
		all.Wait()
	})
	return s
}

func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	if s.implied {
		conn = tls.Server(conn, s.tls)
	}
	in := bufio.NewReader(conn)
	if !s.reply(conn, "greeting", "220 test ESMTP") {
		return
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		verb, _, _ := strings.Cut(line, " ")
		s.mu.Lock()
		s.commands = append(s.commands, line)
		s.mu.Unlock()
		var ok bool
		switch verb {
		case "EHLO":
			ok = s.reply(conn, verb, "250-test"+strings.ReplaceAll(" "+s.offers, " ", "\r\n250-")+"\r\n250 HELP")
		case "STARTTLS":
			if ok = s.reply(conn, verb, "220 go"); ok {
				conn = tls.Server(conn, s.tls)
				in = bufio.NewReader(conn)
			}
		case "DATA":
			text := s.pick(verb, "354 go")
			if ok = s.put(conn, text); ok && strings.Contains(text, "354") {
				if !s.body(in) {
					return
				}
				ok = s.reply(conn, "body", "250 2.0.0 Ok: queued as ABC123")
			}
		case "AUTH":
			ok = s.reply(conn, verb, "235 ok")
		case "QUIT":
			s.reply(conn, verb, "221 bye")
			return
		default:
			ok = s.reply(conn, verb, "250 ok")
		}
		if !ok {
			return
		}
	}
}

func (s *server) body(in *bufio.Reader) bool {
	var b strings.Builder
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return false
		}
		if line == ".\r\n" {
			s.mu.Lock()
			s.bodies = append(s.bodies, b.String())
			s.mu.Unlock()
			return true
		}
		b.WriteString(strings.TrimPrefix(line, "."))
	}
}

func (s *server) pick(verb, usual string) string {
	s.mu.Lock()
	s.seen[verb]++
	n := s.seen[verb]
	s.mu.Unlock()
	if s.answer != nil {
		if text := s.answer(verb, n); text != "" {
			return text
		}
	}
	return usual
}

func (s *server) reply(conn net.Conn, verb, usual string) bool {
	return s.put(conn, s.pick(verb, usual))
}

// put is false when the conversation is over.
func (s *server) put(conn net.Conn, text string) bool {
	if text == hang {
		_, _ = conn.Read(make([]byte, 1<<20)) // until the client closes
		for {
			if _, err := conn.Read(make([]byte, 1<<20)); err != nil {
				return false
			}
		}
	}
	if text == drip {
		for _, err := io.WriteString(conn, "250-"); err == nil; _, err = io.WriteString(conn, "x\r\n250-") {
			time.Sleep(20 * time.Millisecond)
		}
		return false
	}
	text, over := strings.CutSuffix(text, hangUp)
	if text != "" {
		if _, err := conn.Write([]byte(text + "\r\n")); err != nil {
			return false
		}
	}
	return !over
}

func (s *server) kept() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.bodies...)
}

func (s *server) receiptFor(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[verb]
}

func (s *server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// carrierTo opens a carrier for a server. more is further config.
func carrierTo(t *testing.T, s *server, more string) *carrier {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.address)
	mode := tlsNone
	if strings.Contains(more, `"tls"`) {
		mode = ""
	}
	config := fmt.Sprintf(`{"host":%q,"port":%s`, host, port)
	if mode != "" {
		config += `,"tls":"none"`
	}
	if more != "" {
		config += "," + more
	}
	var secrets []byte
	if strings.Contains(more, `"dsn"`) {
		secrets = []byte(`{"webhook_secret":"0123456789abcdef"}`)
	}
	c, err := open([]byte(config+"}"), secrets, Options{AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	c.timeout = 5 * time.Second
	t.Cleanup(c.Close)
	return c
}

func message(n int) sender.Message {
	return sender.Message{
		Notification: fmt.Sprintf("ntf_%d", n), Attempt: 1, To: fmt.Sprintf("user%d@example.test", n),
		FromName: "Shop", FromEmail: "news@shop.example", Subject: fmt.Sprintf("Message %d", n),
		HTML: "<p>hello</p>", Text: "hello", Date: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Seed: uuid.UUID{15: byte(n)},
	}
}

func messages(n int) []sender.Message {
	all := make([]sender.Message, n)
	for i := range all {
		all[i] = message(i + 1)
	}
	return all
}

// copies counts how often a server has seen each Message-ID's body.
func (s *server) copies() map[string]int {
	n := map[string]int{}
	for _, b := range s.kept() {
		for line := range bytes.Lines([]byte(b)) {
			if id, ok := bytes.CutPrefix(line, []byte("Message-ID: ")); ok {
				n[string(bytes.TrimSpace(id))]++
			}
		}
	}
	return n
}
