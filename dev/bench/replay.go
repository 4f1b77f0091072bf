package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// replayer sends requests that were made before over one connection. It costs little CPU,
// so that a figure measures the server.
type replayer struct {
	conn   net.Conn
	reader *bufio.Reader
}

func newReplayer(ctx context.Context, at string) (*replayer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(at, "http://"))
	if err != nil {
		return nil, err
	}
	return &replayer{conn, bufio.NewReader(conn)}, nil
}

func (r *replayer) close() { _ = r.conn.Close() }

// send sends a request and reads the answer, which must be 200 without a body.
func (r *replayer) send(request []byte) error {
	if _, err := r.conn.Write(request); err != nil {
		return err
	}
	status, err := r.reader.ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(status, "HTTP/1.1 200 ") {
		rest, _ := io.ReadAll(io.LimitReader(r.reader, int64(r.reader.Buffered())))
		return fmt.Errorf("the answer is %s%s", status, rest)
	}
	for empty := false; ; {
		line, err := r.reader.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case len(line) > 2:
			empty = empty || strings.EqualFold(string(line), "Content-Length: 0\r\n")
		case !empty:
			return errors.New("the answer has a body")
		default:
			return nil
		}
	}
}
