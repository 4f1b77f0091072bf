package smtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/dev/sink"
	"lemma/sender"
	"lemma/sender/mime"
)

const sinkVariable = "LEMMA_TEST_SINK"

// TestMain runs the sink instead of the tests when it is asked to: a benchmark
// starts this binary a second time, so that the sink's CPU is not the client's.
func TestMain(m *testing.M) {
	if os.Getenv(sinkVariable) == "" {
		os.Exit(m.Run())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, listener.Addr())
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := sink.Run(ctx, listener, os.Stdout); err != nil {
		panic(err)
	}
}

// startSink runs a sink in a process of its own, for as long as the test.
func startSink(tb testing.TB) (address string, process *exec.Cmd) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), sinkVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	address, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	return strings.TrimSpace(address), cmd
}

// benchMessages are mails of about 2 kB on the wire with both parts.
func benchMessages(n int) []sender.Message {
	paragraph := "<p>Hello reader, this is a paragraph of a newsletter with " +
		"a <a href=\"https://shop.example/x?id=%d\">link</a> in it.</p>\n"
	messages := make([]sender.Message, n)
	for i := range messages {
		html := "<html><body>" + strings.Repeat(fmt.Sprintf(paragraph, i), 9) + "</body></html>"
		messages[i] = sender.Message{
			Notification: lemma.FormatNotificationID(uuid.UUID{1}, uuid.UUID{15: byte(i)}), Attempt: 1,
			To: fmt.Sprintf("user%d@example.test", i+1), FromName: "The Shop", FromEmail: "news@shop.example",
			Subject: fmt.Sprintf("News for reader %d", i), HTML: html, Text: "Hello reader,\n\nthis is the plain text of a newsletter.\n",
			Date: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Seed: uuid.UUID{15: byte(i)},
		}
	}
	return messages
}

func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// cpuOf reads the CPU that another process has used, in ticks of 10 ms.
func cpuOf(pid int) time.Duration {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	var u, s int64
	_, _ = fmt.Sscan(f[11], &u)
	_, _ = fmt.Sscan(f[12], &s)
	return time.Duration(u+s) * 10 * time.Millisecond
}

// BenchmarkSend reports the client's and the sink's CPU per mail.
func BenchmarkSend(b *testing.B) {
	for _, senders := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("connections=%d", senders), func(b *testing.B) { benchSend(b, senders, "", 200) })
	}
	b.Run("dkim=ed25519", func(b *testing.B) { benchSend(b, 8, testKeyEd25519, 200) })
	b.Run("dkim=rsa2048", func(b *testing.B) { benchSend(b, 8, testKeyRSA, 50) })
}

func benchSend(b *testing.B, senders int, key string, window int) {
	address, process := startSink(b)
	host, port, _ := net.SplitHostPort(address)
	config := fmt.Sprintf(`{"host":%q,"port":%s,"tls":"none","max_connections":%d`, host, port, senders)
	secrets := "null"
	if key != "" {
		config += `,"dkim":{"domain":"shop.example","selector":"s1"}`
		raw, _ := json.Marshal(map[string]string{"dkim_private_key": key})
		secrets = string(raw)
	}
	c, err := open([]byte(config+"}"), []byte(secrets), Options{AllowPrivate: true})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	messages := benchMessages(window)
	var left sync.Mutex
	todo := b.N
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before, sinkBefore := cpu(), cpuOf(process.Process.Pid)
	for range senders {
		all.Go(func() {
			for {
				left.Lock()
				n := min(todo, window)
				todo -= n
				left.Unlock()
				if n == 0 {
					return
				}
				for _, r := range c.Send(b.Context(), messages[:n]) {
					if r.Outcome != sender.Accepted {
						b.Errorf("%+v", r)
						return
					}
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N), "client-us/mail")
	b.ReportMetric(float64((cpuOf(process.Process.Pid)-sinkBefore).Nanoseconds())/1e3/float64(b.N), "sink-us/mail")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "mails/s")
}

// BenchmarkDraft is the writing of a message alone.
func BenchmarkDraft(b *testing.B) {
	messages := benchMessages(100)
	var w mime.Writer
	var d draft
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if err := d.write(&w, &messages[i%100], &settings{}); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.SetBytes(int64(d.size))
}
