package catcher_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/smtp"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/dev/catcher"
)

func start(t *testing.T, o catcher.Options) *catcher.Catcher {
	t.Helper()
	c, err := catcher.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func mailTo(c *catcher.Catcher, n int, to ...string) error {
	body := fmt.Sprintf("Message-ID: <m%d@test>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?= %d\r\n"+
		"Content-Type: text/html\r\n\r\n<p>hi</p>\r\n.dot\r\n", n, n)
	return smtp.SendMail(c.Addr(), nil, "a@test.example", to, []byte(body))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	c := start(t, catcher.Options{})
	must(t, mailTo(c, 1, "x@test.example", "y@test.example"))
	must(t, mailTo(c, 2, "x@test.example"))
	must(t, mailTo(c, 2, "x@test.example"))
	s := c.Stats()
	if s.Messages != 4 || s.Distinct != 2 || s.Duplicates != 1 || s.Most != 2 || s.Recipients != 2 {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff(map[string]int{"<m1@test>": 2, "<m2@test>": 2}, c.Copies()); diff != "" {
		t.Error(diff)
	}
	all := c.Ledger()
	if len(all) != 4 || all[1].Recipient != "y@test.example" || all[3].N != 4 || all[3].Connection != 3 {
		t.Errorf("%+v", all)
	}
}

func TestRemembersAcrossARestart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	first := start(t, catcher.Options{Folder: folder})
	must(t, mailTo(first, 1, "x@test.example"))
	before := first.Ledger()
	first.Close()
	// A crash in the middle of a line, before its message was answered.
	file, err := os.OpenFile(filepath.Join(folder, "caught.log"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteString("12345\t<cut")
	must(t, err)
	must(t, file.Close())
	second := start(t, catcher.Options{Folder: folder})
	must(t, mailTo(second, 1, "x@test.example"))
	second.Close()
	third := start(t, catcher.Options{Folder: folder})
	if s := third.Stats(); s.Messages != 2 || s.Duplicates != 1 {
		t.Errorf("%+v", s)
	}
	before[0].Connection = 0
	if diff := cmp.Diff(before[0], third.Ledger()[0]); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		rule  catcher.Rule
		fails []int // of three mails
		kept  int
	}{
		{"drops after the dot and keeps", catcher.Rule{At: catcher.Dot, First: 2, Last: 2, Fault: catcher.DropKept}, []int{2}, 3},
		{"drops after the dot and loses", catcher.Rule{At: catcher.Dot, First: 2, Last: 2, Fault: catcher.DropLost}, []int{2}, 2},
		{"throttles every second", catcher.Rule{At: catcher.Dot, Every: 2, Fault: catcher.Refuse("451 4.7.1 Slow down")}, []int{2}, 2},
		{"refuses an address", catcher.Rule{At: catcher.Rcpt, To: "u3@", Fault: catcher.Refuse("550 5.1.1 No such user")}, []int{3}, 2},
		{"closes at connect", catcher.Rule{At: catcher.Connect, Last: 1, Fault: catcher.Fault{Close: true}}, []int{1}, 2},
		{"replies nonsense and keeps", catcher.Rule{At: catcher.Dot, Last: 1, Fault: catcher.Garbage}, []int{1}, 3},
		{"replies 421", catcher.Rule{At: catcher.Mail, First: 3, Fault: catcher.Closing}, []int{3}, 2},
		{"answers late", catcher.Rule{At: catcher.Dot, Fault: catcher.Fault{Delay: time.Millisecond}}, nil, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := start(t, catcher.Options{Faults: catcher.Script(c.rule)})
			var failed []int
			for n := 1; n <= 3; n++ {
				if mailTo(server, n, fmt.Sprintf("u%d@test.example", n)) != nil {
					failed = append(failed, n)
				}
			}
			if diff := cmp.Diff(c.fails, failed); diff != "" {
				t.Errorf("failed (-want +got):\n%s", diff)
			}
			if n := server.Stats().Messages; n != c.kept {
				t.Errorf("%d kept, want %d", n, c.kept)
			}
		})
	}
}

// A hanging server does not block Close.
func TestHang(t *testing.T) {
	t.Parallel()
	hung := make(chan struct{})
	c := start(t, catcher.Options{Faults: func(e catcher.Event) catcher.Fault {
		if e.Stage == catcher.Dot {
			close(hung)
		}
		return catcher.Fault{Hang: e.Stage == catcher.Dot}
	}})
	done := make(chan error)
	go func() { done <- mailTo(c, 1, "x@test.example") }()
	<-hung
	c.Close()
	if <-done == nil {
		t.Error("a mail was sent to a server that hangs")
	}
	if c.Stats().Messages != 1 {
		t.Error("a hanging server keeps what it took")
	}
}

func TestCountsUnderLoad(t *testing.T) {
	t.Parallel()
	c := start(t, catcher.Options{Keep: 10})
	const connections, each = 8, 200
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() {
			conn, err := net.Dial("tcp", c.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			var b strings.Builder
			b.WriteString("EHLO x\r\n")
			for n := range each {
				fmt.Fprintf(&b, "MAIL FROM:<a@b.test>\r\nRCPT TO:<u%d@b.test>\r\nDATA\r\n"+
					"Message-ID: <%d@x>\r\n\r\n..x\r\n.\r\n", i*each+n, i*each+n)
			}
			b.WriteString("QUIT\r\n")
			if _, err := io.WriteString(conn, b.String()); err != nil {
				t.Error(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if s := c.Stats(); s.Messages != connections*each || s.Distinct != connections*each || s.Duplicates != 0 {
		t.Errorf("%+v", s)
	}
}

// Only CRLF ends a line, so a dot after another line end does not end a message.
func TestNoSmuggling(t *testing.T) {
	t.Parallel()
	c := start(t, catcher.Options{})
	conn, err := net.Dial("tcp", c.Addr())
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "EHLO x\r\nMAIL FROM:<a@b.test>\r\nRCPT TO:<c@b.test>\r\nDATA\r\n"+
		"Message-ID: <1>\r\n\r\nx\n.\r\nMAIL FROM:<e@b.test>\n.\n\r\n.\r\nQUIT\r\n")
	must(t, err)
	_, err = io.Copy(io.Discard, conn)
	must(t, err)
	want := "Message-ID: <1>\r\n\r\nx\n.\r\nMAIL FROM:<e@b.test>\n.\n\r\n"
	if got, _ := c.Source(1); c.Stats().Messages != 1 || string(got) != want {
		t.Errorf("%d messages, the first %q", c.Stats().Messages, got)
	}
}

func TestCommandsOutOfOrder(t *testing.T) {
	t.Parallel()
	c := start(t, catcher.Options{})
	conn, err := net.Dial("tcp", c.Addr())
	must(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	for _, step := range [][2]string{
		{"", "220"}, {"HELO x", "250"}, {"RCPT TO:<a@b>", "503"}, {"DATA", "554"}, {"MAIL FROM:<a@b>", "250"}, {"MAIL FROM:<a@b>", "503"},
		{"RCPT TO:a@b", "503"}, {"RSET", "250"}, {"DATA", "554"}, {"VRFY a", "502"}, {"NOOP", "250"}, {"QUIT", "221"},
	} {
		if step[0] != "" {
			_, err := io.WriteString(conn, step[0]+"\r\n")
			must(t, err)
		}
		line, err := in.ReadString('\n')
		must(t, err)
		if !strings.HasPrefix(line, step[1]) {
			t.Errorf("%s: %q, want %s", step[0], line, step[1])
		}
	}
}

func TestListensOnThisMachineAlone(t *testing.T) {
	t.Parallel()
	for _, o := range []catcher.Options{{SMTP: "0.0.0.0:0"}, {HTTP: ":0"}, {HTTP: "192.0.2.1:0"}} {
		if c, err := catcher.Start(o); err == nil {
			c.Close()
			t.Errorf("%+v is taken", o)
		}
	}
}

func get(t *testing.T, url string) (status int, header http.Header, body string) {
	t.Helper()
	r, err := http.Get(url)
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, r.Header, string(text)
}

func TestPage(t *testing.T) {
	t.Parallel()
	c := start(t, catcher.Options{HTTP: "127.0.0.1:0", Keep: 2})
	for n := 1; n <= 3; n++ {
		must(t, mailTo(c, n, fmt.Sprintf("u%d@test.example", n)))
	}
	for _, p := range []struct {
		path     string
		status   int
		has, not string
	}{
		{"/", 200, "Grüße 3", "http://"},
		{"/?q=U2@", 200, "u2@test.example", "u3@test.example"},
		{"/?q=gr%C3%BC%C3%9Fe+3", 200, "u3@test.example", "u2@test.example"},
		{"/?q=%3Cscript%3E", 200, "&lt;script&gt;", "<script>"},
		{"/messages/3", 200, "&lt;m3@test&gt;", "no longer kept"},
		{"/messages/1", 200, "no longer kept", "iframe"},
		{"/messages/3/html", 200, `<base target="_blank"><p>hi</p>`, "Subject"},
		{"/messages/3/source", 200, "</p>\r\n.dot\r\n", "..dot"},
		{"/messages/9", 404, "no such message", ""},
		{"/messages/x", 404, "no such message", ""},
		{"/page/page.css", 200, "body", ""},
	} {
		status, header, body := get(t, c.URL()+p.path)
		if status != p.status || !strings.Contains(body, p.has) || (p.not != "" && strings.Contains(body, p.not)) {
			t.Errorf("%s: %d\n%s", p.path, status, body)
		}
		if !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: policy %q", p.path, header.Get("Content-Security-Policy"))
		}
	}
}

func TestPageAnswersThisMachineAlone(t *testing.T) {
	t.Parallel()
	c := start(t, catcher.Options{HTTP: "127.0.0.1:0"})
	r, err := http.NewRequest(http.MethodGet, c.URL()+"/api/messages", nil)
	must(t, err)
	r.Host = "evil.example"
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("status %d", answer.StatusCode)
	}
}

func TestAPI(t *testing.T) {
	t.Parallel()
	c := start(t, catcher.Options{HTTP: "127.0.0.1:0"})
	must(t, mailTo(c, 1, "x@test.example"))
	_, _, body := get(t, c.URL()+"/api/stats")
	var stats catcher.Stats
	must(t, json.Unmarshal([]byte(body), &stats))
	if stats.Messages != 1 || stats.Last.IsZero() {
		t.Errorf("%s", body)
	}
	_, _, body = get(t, c.URL()+"/api/messages?q=x@&limit=5")
	var list struct {
		Data []struct {
			Recipient, Subject string
			Copies             int
		}
	}
	must(t, json.Unmarshal([]byte(body), &list))
	if len(list.Data) != 1 || list.Data[0].Subject != "Grüße 1" || list.Data[0].Copies != 1 {
		t.Errorf("%s", body)
	}
}

func ExampleStart() {
	c, err := catcher.Start(catcher.Options{Faults: catcher.Script(
		catcher.Rule{At: catcher.Rcpt, To: "unknown@", Fault: catcher.Refuse("550 5.1.1 No such user")},
		catcher.Rule{At: catcher.Dot, Every: 100, Fault: catcher.DropKept},
	)})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	fmt.Println(smtp.SendMail(c.Addr(), nil, "a@shop.example", []string{"unknown@test.example"}, nil))
	fmt.Println(c.Stats().Messages)
	// Output:
	// 550 "5.1.1 No such user"
	// 0
}

func BenchmarkTake(b *testing.B) {
	c, err := catcher.Start(catcher.Options{Folder: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	conn, err := net.Dial("tcp", c.Addr())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	body := strings.Repeat(strings.Repeat("x", 70)+"\r\n", 28)
	out := bufio.NewWriter(conn)
	for i := range b.N {
		fmt.Fprintf(out, "MAIL FROM:<a@b.test>\r\nRCPT TO:<u%d@b.test>\r\nDATA\r\nMessage-ID: <%d@x>\r\n\r\n%s.\r\n", i, i, body)
	}
	_ = out.Flush()
	for c.Stats().Messages < b.N {
		time.Sleep(time.Millisecond)
	}
}
