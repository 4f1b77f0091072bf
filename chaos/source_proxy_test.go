package chaos

import (
	"io"
	"net"
	"sync"
	"testing"
)

// sourceProxy is a TCP port that forwards to the socket of a customer's database. It can
// freeze: connections stay open and carry no more data.
type sourceProxy struct {
	port net.Listener
	to   string // the socket's file

	mu      sync.Mutex
	changed chan struct{} // closed when most changes; then there is another channel
	most    int           // bytes that each connection carries
}

const (
	piece     = 16 << 10
	unlimited = 1 << 40
)

func startSourceProxy(t *testing.T, to string) *sourceProxy {
	t.Helper()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &sourceProxy{port: port, to: to, changed: make(chan struct{}), most: unlimited}
	t.Cleanup(func() { _ = port.Close(); w.thaw() })
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

// hold returns when the connection may carry that many bytes.
func (w *sourceProxy) hold(carried int) {
	for {
		w.mu.Lock()
		most, changed := w.most, w.changed
		w.mu.Unlock()
		if carried <= most {
			return
		}
		<-changed
	}
}

// freezeAfter stops each connection after that many bytes until thaw.
func (w *sourceProxy) freezeAfter(most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = most
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *sourceProxy) freeze() { w.freezeAfter(0) }
func (w *sourceProxy) thaw()   { w.freezeAfter(unlimited) }

func (w *sourceProxy) address() string { return w.port.Addr().String() }
