package chaos

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// sourceProxy is a TCP port that forwards to the socket of a customer's database. It
// can be slow, or freeze: connections stay open and carry no more data.
type sourceProxy struct {
	port net.Listener
	to   string // the socket's file

	mu       sync.Mutex
	thawed   chan struct{} // closed unless the proxy is frozen
	slowness time.Duration // delay of each piece that the database sends
	quick    int           // bytes that each connection carries without delay
	most     int           // bytes that each connection carries before it hangs until the test ends; 0: no bound
	over     chan struct{} // closed when the test ends
}

const piece = 16 << 10

func startSourceProxy(t *testing.T, to string) *sourceProxy {
	t.Helper()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &sourceProxy{port: port, to: to, thawed: make(chan struct{}), over: make(chan struct{})}
	close(w.thawed)
	t.Cleanup(func() { _ = port.Close(); w.thaw(); close(w.over) })
	go w.serve()
	return w
}

func (w *sourceProxy) serve() {
	for {
		near, err := w.port.Accept()
		if err != nil {
			return
		}
		go func() {
			defer near.Close()
			far, err := net.Dial("unix", w.to)
			if err != nil {
				return
			}
			defer far.Close()
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
			w.pass(near, far)
		}()
	}
}

// pass forwards the answers of the database. It reads on while the proxy is frozen: a
// backend that cannot write would block the drop of databases in its cluster.
func (w *sourceProxy) pass(near, far net.Conn) {
	answers := make(chan []byte, 4096)
	go func() {
		defer close(answers)
		for {
			buffer := make([]byte, piece)
			n, err := far.Read(buffer)
			if err != nil {
				return
			}
			answers <- buffer[:n]
		}
	}()
	carried := 0
	for answer := range answers {
		carried += len(answer)
		w.hold(carried)
		if _, err := near.Write(answer); err != nil {
			return
		}
	}
}

func (w *sourceProxy) hold(carried int) {
	w.mu.Lock()
	thawed, slowness, most, quick := w.thawed, w.slowness, w.most, w.quick
	w.mu.Unlock()
	if most > 0 && carried > most {
		<-w.over
	}
	if slowness > 0 && carried > quick {
		<-time.After(slowness)
	}
	<-thawed
}

func (w *sourceProxy) slow(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowness = d
}

// hangAfter stops each connection after that many bytes.
func (w *sourceProxy) hangAfter(bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = bytes
}

func (w *sourceProxy) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thawed = make(chan struct{})
}

func (w *sourceProxy) thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.thawed:
	default:
		close(w.thawed)
	}
}

func (w *sourceProxy) address() string { return w.port.Addr().String() }
