package lmtp_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-smtp"

	"lemma"
	"lemma/lmtp"
)

// inbox keeps what was handled.
type inbox struct {
	mu    sync.Mutex
	mails map[string][]string // by provider
	fail  error
}

func (b *inbox) receive(_ context.Context, provider string, mail []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail == nil {
		b.mails[provider] = append(b.mails[provider], string(mail))
	}
	return b.fail
}

func serve(t *testing.T) (*inbox, *smtp.Client) {
	t.Helper()
	b, conn := connect(t)
	client := smtp.NewClientLMTP(conn)
	t.Cleanup(func() { client.Close() })
	return b, client
}

func connect(t *testing.T) (*inbox, net.Conn) {
	t.Helper()
	b := &inbox{mails: map[string][]string{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := lmtp.New(b.receive, slog.New(slog.NewTextHandler(t.Output(), nil)))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return b, conn
}

// deliver sends a mail and returns the code of each answer: to the recipients, and to the
// mail for those that were accepted.
func deliver(t *testing.T, c *smtp.Client, mail string, to ...string) (codes []int) {
	t.Helper()
	code := func(err error) int {
		if err == nil {
			return 250
		}
		var answer *smtp.SMTPError
		if !errors.As(err, &answer) {
			t.Fatal(err)
		}
		return answer.Code
	}
	if err := c.Mail("", nil); err != nil {
		t.Fatal(err)
	}
	var accepted []string
	for _, address := range to {
		err := c.Rcpt(address, nil)
		codes = append(codes, code(err))
		if err == nil {
			accepted = append(accepted, address)
		}
	}
	if len(accepted) == 0 {
		return codes
	}
	w, err := c.Data()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, mail); err != nil {
		t.Fatal(err)
	}
	_, err = w.CloseWithLMTPResponse()
	refused, _ := errors.AsType[smtp.LMTPDataError](err)
	for _, address := range accepted {
		if refused[address] != nil {
			codes = append(codes, refused[address].Code)
		} else {
			codes = append(codes, 250)
		}
	}
	return codes
}

func TestReceive(t *testing.T) {
	t.Parallel()
	b, c := serve(t)
	one, two := lemma.FormatID(lemma.PrefixProvider, lemma.NewID()), lemma.FormatID(lemma.PrefixProvider, lemma.NewID())
	got := deliver(t, c, "Subject: x\r\n\r\nhello\r\n..dot\r\n", one+"@bounces.shop.example", "bounces+"+strings.ToUpper(two)+"@shop.example",
		"postmaster@shop.example", "prv_1@shop.example", lemma.FormatID(lemma.PrefixCampaign, lemma.NewID())+"@shop.example")
	if want := []int{250, 250, 550, 550, 550, 250, 250}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, provider := range []string{one, two} {
		if mails := b.mails[provider]; len(mails) != 1 || !strings.Contains(mails[0], "hello") {
			t.Errorf("%q", mails)
		}
	}
}

// A mail to many spellings of one provider's address is handled once, and each recipient is answered.
func TestSpellingsOfOneProvider(t *testing.T) {
	t.Parallel()
	b, c := serve(t)
	provider := lemma.FormatID(lemma.PrefixProvider, lemma.NewID())
	got := deliver(t, c, "Subject: x\r\n\r\nhello\r\n", "a+"+provider+"@shop.example", "b+"+provider+"@shop.example",
		"B+"+strings.ToUpper(provider)+"@shop.example")
	if n := len(b.mails[provider]); n != 1 || !slices.Equal(got, []int{250, 250, 250, 250, 250, 250}) {
		t.Errorf("handled %d times, %v", n, got)
	}
}

// The mail server keeps a mail that is not handled, and a connection serves the next one.
func TestFailures(t *testing.T) {
	t.Parallel()
	b, c := serve(t)
	to := lemma.FormatID(lemma.PrefixProvider, lemma.NewID()) + "@shop.example"
	for _, step := range []struct {
		fail error
		want []int
	}{
		{errors.New("the database is gone"), []int{250, 451}}, {lmtp.ErrNoProvider, []int{250, 550}}, {nil, []int{250, 250}},
	} {
		b.fail = step.fail
		if got := deliver(t, c, "x", to); !slices.Equal(got, step.want) {
			t.Errorf("%v: %v, want %v", step.fail, got, step.want)
		}
	}
}

// Of a large mail the beginning is kept.
func TestLargeMails(t *testing.T) {
	t.Parallel()
	b, c := serve(t)
	provider := lemma.FormatID(lemma.PrefixProvider, lemma.NewID())
	mail := "Subject: x\r\n\r\n" + strings.Repeat(strings.Repeat("x", 998)+"\r\n", 5000)
	if got := deliver(t, c, mail, provider+"@shop.example"); !slices.Equal(got, []int{250, 250}) {
		t.Error(got)
	}
	if mails := b.mails[provider]; len(mails) != 1 || len(mails[0]) != 256<<10 {
		t.Errorf("%d mails", len(mails))
	}
}

// A line of a mail has no limit: the rest of a mail is read, and the next one is received.
func TestLongLines(t *testing.T) {
	t.Parallel()
	b, c := serve(t)
	provider := lemma.FormatID(lemma.PrefixProvider, lemma.NewID())
	for _, bytes := range []int{64 << 10, 200 << 10, 2 << 20} {
		mail := "Subject: x\r\n\r\n" + strings.Repeat("x", bytes) + "\r\nend\r\n"
		if got := deliver(t, c, mail, provider+"@shop.example"); !slices.Equal(got, []int{250, 250}) {
			t.Errorf("%d bytes: %v", bytes, got)
		}
	}
	if mails := b.mails[provider]; len(mails) != 3 || len(mails[2]) != 256<<10 {
		t.Errorf("%d mails", len(mails))
	}
}

// A line of a mail in chunks has a limit: the commands between the chunks are lines too.
func TestLongLinesInChunks(t *testing.T) {
	t.Parallel()
	for size, whole := range map[int]bool{7 << 20: true, 9 << 20: false} {
		b, conn := connect(t)
		c := textproto.NewConn(conn)
		if _, _, err := c.ReadResponse(220); err != nil {
			t.Fatal(err)
		}
		provider := lemma.FormatID(lemma.PrefixProvider, lemma.NewID())
		for _, command := range []string{"LHLO shop.example", "MAIL FROM:<>", "RCPT TO:<" + provider + "@shop.example>"} {
			if err := c.PrintfLine("%s", command); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.ReadResponse(250); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _ = c.PrintfLine("BDAT %d LAST\r\n%s", size, strings.Repeat("x", size-2)) }() // the server may close before its end
		_, _, err := c.ReadResponse(250)
		if (err == nil) != whole || (len(b.mails[provider]) == 1) != whole {
			t.Errorf("%d bytes: %v, %d mails", size, err, len(b.mails[provider]))
		}
	}
}

// A command is kept as a line, so its length is limited, also after a mail.
func TestLongCommands(t *testing.T) {
	t.Parallel()
	_, c := serve(t)
	provider := lemma.FormatID(lemma.PrefixProvider, lemma.NewID())
	if got := deliver(t, c, "x", provider+"@shop.example"); !slices.Equal(got, []int{250, 250}) {
		t.Error(got)
	}
	err := c.Mail(strings.Repeat("x", 65<<10)+"@shop.example", nil)
	if answer, _ := errors.AsType[*smtp.SMTPError](err); answer == nil || answer.Code != 500 {
		t.Error(err)
	}
}

// A shutdown ends an idle connection at once, and waits for the mail of another one, if that comes in
// time.
func TestShutdown(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := lmtp.New((&inbox{mails: map[string][]string{}}).receive, slog.New(slog.NewTextHandler(t.Output(), nil)))
	served, shut := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	open := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	idle, busy := open(), smtp.NewClientLMTP(open())
	if _, err := bufio.NewReader(idle).ReadString('\n'); err != nil { // it is greeted
		t.Fatal(err)
	}
	if err := busy.Mail("", nil); err != nil {
		t.Fatal(err)
	}
	go func() { shut <- s.Shutdown(t.Context()) }()
	if err := idle.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(idle); err != nil {
		t.Errorf("the idle connection goes on: %v", err)
	}
	select {
	case err := <-shut:
		t.Errorf("it does not wait for the mail: %v", err)
	default:
	}
	if err := busy.Rcpt(lemma.FormatID(lemma.PrefixProvider, lemma.NewID())+"@shop.example", nil); err != nil {
		t.Fatal(err)
	}
	w, err := busy.Data()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.CloseWithLMTPResponse(); err != nil {
		t.Errorf("the mail is refused: %v", err)
	}
	for _, ended := range []chan error{shut, served} {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("it does not end")
		}
	}
}

// A client that begins a mail and does not go on is not waited for.
func TestShutdownOfAStalledMail(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := lmtp.New((&inbox{mails: map[string][]string{}}).receive, slog.New(slog.NewTextHandler(t.Output(), nil)))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := smtp.NewClientLMTP(conn).Mail("", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %d bytes, %v", n, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
