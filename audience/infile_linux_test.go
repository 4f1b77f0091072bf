package audience

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestMySQLServerThatRequestsAFile has a server that responds to a query with a request
// for a local file, which the protocol allows at any time.
func TestMySQLServerThatRequestsAFile(t *testing.T) {
	t.Parallel()
	b, s := mariadbShop(t, dev)
	file := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(file, []byte("canary canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var reported recording
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go requestFile(client, s.address(), file, &reported)
		}
	}()
	source := b.addSource(t, MySQL, strings.Replace(b.DSN, s.address(), l.Addr().String(), 1)+"?tls=false")
	if _, err := b.TestSource(t.Context(), b.Workspace, source); err == nil {
		t.Error("the server was accepted")
	}
	if !reported.requested() {
		t.Error("the server did not request the file")
	}
	if bytes.Contains(reported.all(), []byte("canary")) {
		t.Error("the file was sent")
	}
}

// recording has the bytes of a client, and whether a file was requested.
type recording struct {
	sync.Mutex
	reported bytes.Buffer
	question bool
}

func (r *recording) Write(p []byte) (int, error) {
	r.Lock()
	defer r.Unlock()
	return r.reported.Write(p)
}

func (r *recording) requested() bool {
	r.Lock()
	defer r.Unlock()
	return r.question
}

func (r *recording) all() []byte {
	r.Lock()
	defer r.Unlock()
	return bytes.Clone(r.reported.Bytes())
}

// requestFile forwards the login and responds to the first statement after it (a
// packet that begins a new sequence with COM_QUERY) by 0xFB and a name.
func requestFile(client net.Conn, address, file string, reported *recording) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { io.Copy(client, server); client.Close() }()
	packet := make([]byte, 64<<10)
	for {
		n, err := client.Read(packet)
		if err != nil {
			return
		}
		reported.Write(packet[:n])
		if n > 4 && packet[3] == 0 && packet[4] == 3 {
			reported.Lock()
			reported.question = true
			reported.Unlock()
			name := append([]byte{0xFB}, file...)
			client.Write(append([]byte{byte(len(name)), 0, 0, 1}, name...))
			io.Copy(reported, client)
			return
		}
		server.Write(packet[:n])
	}
}
