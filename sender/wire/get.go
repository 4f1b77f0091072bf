package wire

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// Get reads a resource of the provider. It is no request of a message. The error is of the
// network, and is not shown to users.
func (c *Client) Get(ctx context.Context, u *url.URL, header http.Header) (*Answer, error) {
	server, err := c.pool(originOf(u))
	if err != nil {
		return nil, err
	}
	defer c.leave(server)
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	conn, _, err := server.take(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the provider: %w", err)
	}
	defer server.done(conn)
	r := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	response, err := conn.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("read from the provider: %w", err)
	}
	call := call{Client: c, server: server}
	a, failure := call.read(response, conn)
	if failure != nil {
		return nil, fmt.Errorf("read from the provider: %s", failure.Reason)
	}
	return a, nil
}
