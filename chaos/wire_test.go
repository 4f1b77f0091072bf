package chaos

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// wire is the way to a customer's database: a port of this machine that leads
// to its socket. It can be slow, and it can freeze: connections stay up, and
// nothing more arrives.
type wire struct {
	door net.Listener
	to   string // the socket's file

	mu       sync.Mutex
	thawed   chan struct{} // closed while bytes flow
	slowness time.Duration // for each piece that the database sends
	quick    int           // bytes that each connection carries before it is slow
	most     int           // bytes that each connection carries before it hangs until the test ends; 0: no bound
	over     chan struct{} // closed when the test ends
}

const piece = 16 << 10

func stretch(t *testing.T, to string) *wire {
	t.Helper()
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{door: door, to: to, thawed: make(chan struct{}), over: make(chan struct{})}
	close(w.thawed)
	t.Cleanup(func() { _ = door.Close(); w.thaw(); close(w.over) })
	go w.serve()
	return w
}

func (w *wire) serve() {
	for {
		near, err := w.door.Accept()
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

// pass carries what the database says. It listens on while nothing arrives: a
// backend that nobody listens to holds up every drop of a database in its cluster.
func (w *wire) pass(near, far net.Conn) {
	said := make(chan []byte, 4096)
	go func() {
		defer close(said)
		for {
			buffer := make([]byte, piece)
			n, err := far.Read(buffer)
			if err != nil {
				return
			}
			said <- buffer[:n]
		}
	}()
	carried := 0
	for words := range said {
		carried += len(words)
		w.hold(carried)
		if _, err := near.Write(words); err != nil {
			return
		}
	}
}

func (w *wire) hold(carried int) {
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

func (w *wire) slow(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowness = d
}

// hangAfter lets each connection carry so many bytes, and then no more.
func (w *wire) hangAfter(bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = bytes
}

func (w *wire) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thawed = make(chan struct{})
}

func (w *wire) thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.thawed:
	default:
		close(w.thawed)
	}
}

func (w *wire) address() string { return w.door.Addr().String() }
