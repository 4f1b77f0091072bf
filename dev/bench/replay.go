package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// replayer sends requests that were made before over one connection. It costs little CPU,
// so that a figure measures the server.
type replayer struct {
	conn   net.Conn
	reader *bufio.Reader
	body   []byte // of the last answer
}

func newReplayer(ctx context.Context, at string) (*replayer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(at, "http://"))
	if err != nil {
		return nil, err
	}
	return &replayer{conn: conn, reader: bufio.NewReader(conn)}, nil
}

func (r *replayer) close() { _ = r.conn.Close() }

// replayers are the connections of as many clients.
type replayers chan *replayer

func newReplayers(ctx context.Context, at string, clients int) (replayers, error) {
	all := make(replayers, clients)
	for range clients {
		r, err := newReplayer(ctx, at)
		if err != nil {
			all.close()
			return nil, err
		}
		all <- r
	}
	return all, nil
}

// close closes the connections that are free.
func (all replayers) close() {
	for {
		select {
		case r := <-all:
			r.close()
		default:
			return
		}
	}
}

// use calls do with a connection that is free.
func (all replayers) use(do func(*replayer) error) error {
	r := <-all
	defer func() { all <- r }()
	return do(r)
}

// send sends a request and reads the answer, which must be 200 without a body.
func (r *replayer) send(request []byte) error {
	status, body, err := r.exchange(request)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("the answer is %d %s", status, body)
	case len(body) > 0:
		return errors.New("the answer has a body")
	}
	return nil
}

// exchange sends a request and reads the answer. The body holds until the next one.
func (r *replayer) exchange(request []byte) (status int, body []byte, err error) {
	if _, err := r.conn.Write(request); err != nil {
		return 0, nil, err
	}
	first, err := r.reader.ReadString('\n')
	if err != nil {
		return 0, nil, err
	}
	code, _, _ := strings.Cut(strings.TrimPrefix(first, "HTTP/1.1 "), " ")
	if status, err = strconv.Atoi(code); err != nil {
		return 0, nil, fmt.Errorf("the answer is %q: %w", first, err)
	}
	length, err := r.contentLength()
	if err != nil {
		return 0, nil, err
	}
	r.body = slices.Grow(r.body[:0], length)[:length]
	_, err = io.ReadFull(r.reader, r.body)
	return status, r.body, err
}

// contentLength reads the header of an answer.
func (r *replayer) contentLength() (length int, err error) {
	length = -1
	for {
		line, err := r.reader.ReadSlice('\n')
		switch {
		case err != nil:
			return 0, err
		case len(line) <= 2 && length < 0:
			return 0, errors.New("the answer has no Content-Length")
		case len(line) <= 2:
			return length, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		}
	}
}
