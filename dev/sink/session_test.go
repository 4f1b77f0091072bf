package sink

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"
)

// The end of a body is found wherever the reads cut it.
func TestFindsTheDotAcrossReads(t *testing.T) {
	t.Parallel()
	session := "EHLO x\r\nMAIL FROM:<a@b.c>\r\nRCPT TO:<u7@b.c>\r\nDATA\r\nline\r\n..\r\n.\r\n" +
		"MAIL FROM:<a@b.c>\r\nRCPT TO:<u8@b.c>\r\nDATA\r\n.\r\nQUIT\r\n"
	for size := 1; size < 12; size++ {
		s := &sink{started: time.Now(), open: map[net.Conn]struct{}{}}
		s.reset()
		near, far := net.Pipe() // each Write is one Read at the other end
		go s.serve(far)
		go func() {
			for rest := session; rest != ""; {
				n := min(size, len(rest))
				if _, err := near.Write([]byte(rest[:n])); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
		}()
		var all bytes.Buffer
		if _, err := all.ReadFrom(near); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(all.String(), "queued as"); n != 2 || s.stats(7, 8).Missing != 0 {
			t.Errorf("in pieces of %d bytes: %d messages, want 2", size, n)
		}
	}
}
