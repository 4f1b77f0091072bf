package mime

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma/sender"
	"lemma/sender/form"
)

func message(n int) sender.Message {
	return sender.Message{
		Notification: fmt.Sprintf("ntf_%d", n), Attempt: 1, To: fmt.Sprintf("user%d@example.test", n),
		FromName: "Shop", FromEmail: "news@shop.example", Subject: fmt.Sprintf("Message %d", n),
		HTML: "<p>hello</p>", Text: "hello", Date: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Seed: uuid.UUID{15: byte(n)},
	}
}

func written(t *testing.T, m sender.Message) string {
	t.Helper()
	var w Writer
	text, body, err := w.Append(nil, &m, Own{})
	if err != nil || !bytes.HasSuffix(text[:body], []byte("\r\n\r\n")) {
		t.Fatalf("%v, the body begins at %d of %q", err, body, text)
	}
	return string(text)
}

// checkWire fails for bytes that a mail server would change or refuse.
func checkWire(t *testing.T, text string) {
	t.Helper()
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\r\n"), "\r\n") {
		switch {
		case len(line) > longLine:
			t.Errorf("a line of %d bytes", len(line))
		case strings.HasPrefix(line, "."):
			t.Errorf("a line begins with a dot: %q", line)
		case strings.ContainsAny(line, "\r\n\x00"):
			t.Errorf("a bare CR, LF or NUL in %q", line)
		case !isASCII(line):
			t.Errorf("not ASCII: %q", line)
		}
	}
}

func TestMessage(t *testing.T) {
	t.Parallel()
	m := message(7)
	m.FromName, m.ReplyTo = "Bücher & Co", "reply@shop.example"
	m.Subject = "Grüße an dich: ein Buch, das dir gefallen könnte, und noch eins, und noch eins"
	m.Headers = [][2]string{{"List-Unsubscribe", "<https://shop.example/u?x=1>"}, {"List-Unsubscribe-Post", "List-Unsubscribe=One-Click"}}
	m.HTML, m.Text = "<p>Grüße\n.dot = 1 </p>\r\n..", "Grüße \n\nbye\t"
	text := written(t, m)
	checkWire(t, text)
	got, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var words mime.WordDecoder
	subject, err := words.DecodeHeader(got.Header.Get("Subject"))
	if err != nil || subject != m.Subject {
		t.Errorf("subject %q, %v", subject, err)
	}
	from, err := got.Header.AddressList("From")
	if err != nil || *from[0] != (mail.Address{Name: m.FromName, Address: m.FromEmail}) {
		t.Errorf("from %v, %v", from, err)
	}
	for name, want := range map[string]string{
		"Message-Id": "<ntf_7@shop.example>", "To": "user7@example.test", "Reply-To": m.ReplyTo, "Date": "Wed, 01 Jul 2026 12:00:00 +0000",
		"List-Unsubscribe": "<https://shop.example/u?x=1>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click", "Mime-Version": "1.0",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
	want := []string{"text/plain: Grüße \r\n\r\nbye\t", "text/html: <p>Grüße\r\n.dot = 1 </p>\r\n.."}
	if diff := cmp.Diff(want, parts(t, got)); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
}

// A text that reads as an encoded word arrives as it is.
func TestTextsThatReadAsEncodedWords(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"=?utf-8?q?x?=", "a =?UTF-8?B?eA==?= b", "a=?us-ascii*en?Q?x?=b", "=?utf-8?q?x y?=", "=?utf-8?q?", "a=?b",
		"a \t=?x?q?y?=", strings.Repeat("=?utf-8?q?x?= ", 40) + "end"} {
		m := message(7)
		m.Subject, m.FromName, m.Headers = text, text, [][2]string{{"X-Note", text}}
		wire := written(t, m)
		checkWire(t, wire)
		got, err := mail.ReadMessage(strings.NewReader(wire))
		if err != nil {
			t.Fatal(err)
		}
		from, err := got.Header.AddressList("From")
		if err != nil || from[0].Name != text {
			t.Errorf("%q: from %v, %v", text, from, err)
		}
		var words mime.WordDecoder
		for _, name := range []string{"Subject", "X-Note"} {
			if shown, err := words.DecodeHeader(got.Header.Get(name)); err != nil || shown != text {
				t.Errorf("%q: %s is %q, %v", text, name, shown, err)
			}
		}
	}
	m, url := message(7), "<https://shop.example/u?x==?utf-8?q?x?=>"
	m.Headers = [][2]string{{"List-Unsubscribe", url}}
	if text := written(t, m); !strings.Contains(text, "List-Unsubscribe: "+url+"\r\n") {
		t.Errorf("the URL is changed: %s", text)
	}
}

// parts are the decoded parts of a mail, each behind its type.
func parts(t *testing.T, m *mail.Message) (all []string) {
	t.Helper()
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "multipart/alternative" {
		return []string{kind + ": " + decoded(t, m.Body)}
	}
	for r := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		kind, _, _ := mime.ParseMediaType(p.Header.Get("Content-Type"))
		all = append(all, kind+": "+decoded(t, p))
	}
}

func decoded(t *testing.T, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(quotedprintable.NewReader(r))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSinglePart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ html, text, want string }{
		{"<p>x</p>", "", "text/html: <p>x</p>\r\n"}, {"", "x\n", "text/plain: x\r\n"}, {"", "", "text/plain: \r\n"},
	} {
		m := message(1)
		m.HTML, m.Text = c.html, c.text
		got, err := mail.ReadMessage(strings.NewReader(written(t, m)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{c.want}, parts(t, got)); diff != "" {
			t.Error(diff)
		}
	}
}

// The lines that messages share are those of the message, not of the one before.
func TestSharedHeaderFollowsTheMessage(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*sender.Message){
		"name": func(m *sender.Message) { m.FromName = "Other" }, "address": func(m *sender.Message) { m.FromEmail = "other@shop.example" },
		"replies": func(m *sender.Message) { m.ReplyTo = "other@shop.example" },
		"headers": func(m *sender.Message) { m.Headers = [][2]string{{"X-Other", "1"}} },
	} {
		var used Writer
		var got []byte
		before, after := message(1), message(1)
		change(&after)
		for _, m := range []*sender.Message{&before, &after} {
			var err error
			if got, _, err = used.Append(got[:0], m, Own{}); err != nil {
				t.Fatal(err)
			}
		}
		if want := written(t, after); string(got) != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
}

func TestQuotedLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"", ""}, {"a=b", "a=3Db"}, {".", "=2E"}, {"a\n.b", "a\r\n=2Eb"}, {"a \nb\t", "a=20\r\nb=09"}, {"a\rb", "a=0Db"}, {"a\r\n",
			"a\r\n"},
		{" ", "=20"}, {"é", "=C3=A9"}, {strings.Repeat("x", 75), strings.Repeat("x", 75)},
		{strings.Repeat("x", 76), strings.Repeat("x", 75) + "=\r\nx"},
		{strings.Repeat("x", 75) + ".", strings.Repeat("x", 75) + "=\r\n=2E"},
		{strings.Repeat("x", 74) + " ", strings.Repeat("x", 74) + "=\r\n=20"},
		{strings.Repeat("x", 73) + "=", strings.Repeat("x", 73) + "=\r\n=3D"},
	} {
		if got := string(appendQuoted(nil, c.in)); got != c.want {
			t.Errorf("%.80q: %q, want %q", c.in, got, c.want)
		}
	}
}

func FuzzQuoted(f *testing.F) {
	f.Add("a=b\r\n.c \n\xff")
	f.Add(strings.Repeat("x", 74) + " \n" + strings.Repeat(". ", 100))
	f.Fuzz(func(t *testing.T, in string) {
		got := string(appendQuoted(nil, in))
		for line := range strings.SplitSeq(got, "\r\n") {
			if len(line) > 76 || strings.HasPrefix(line, ".") || strings.HasSuffix(line, " ") || strings.HasSuffix(line, "\t") ||
				!isASCII(line) {
				t.Fatalf("the line %q of %q", line, in)
			}
		}
		want := strings.ReplaceAll(strings.ReplaceAll(in, "\r\n", "\n"), "\n", "\r\n")
		back, err := io.ReadAll(quotedprintable.NewReader(strings.NewReader(got)))
		if err != nil || string(back) != want {
			t.Fatalf("%q is decoded as %q: %v", in, back, err)
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add("Grüße", "Bücher", "<https://x.test/?a=b>, <mailto:a@b.test>")
	f.Add(strings.Repeat("word ", 300), strings.Repeat("é", 200), strings.Repeat("y", 900))
	f.Add("=?utf-8?q?x?=", `a "b" \c`, "a  b   c")
	f.Add(" \t", "\x7f", "\xff\xfe")
	f.Fuzz(func(t *testing.T, subject, name, value string) {
		m := message(1)
		m.Subject, m.FromName, m.Headers = subject, name, [][2]string{{"X-Value", value}}
		var w Writer
		text, _, err := w.Append(nil, &m, Own{})
		if err != nil {
			if !form.HasBreak(subject) && !form.HasBreak(name) && !form.HasBreak(value) && err != errFieldLong {
				t.Fatal(err)
			}
			return
		}
		if form.HasBreak(subject) || form.HasBreak(name) || form.HasBreak(value) {
			t.Fatal("a line break went through")
		}
		checkWire(t, string(text))
		got, err := mail.ReadMessage(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Header) != 8 {
			t.Fatalf("%d headers: %v", len(got.Header), got.Header)
		}
		var words mime.WordDecoder
		if back, err := words.DecodeHeader(got.Header.Get("Subject")); err != nil || back != valid(subject) {
			t.Fatalf("subject %q is decoded as %q: %v", subject, back, err)
		}
		from, err := got.Header.AddressList("From")
		if err != nil || len(from) != 1 || from[0].Address != m.FromEmail || from[0].Name != valid(name) {
			t.Fatalf("from %q is decoded as %v: %v", name, from, err)
		}
	})
}

func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
