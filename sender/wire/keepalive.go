package wire

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A server of HTTP/1.1 closes idle connections at any time, and says nothing of a request that comes
// at that moment (RFC 9112, 9.5): the outcome of the call would be unknown. Servers that announce no
// time have 2 s or more. One of HTTP/2 says which requests it has processed.
const (
	keepUnknown = 1500 * time.Millisecond
	keepMargin  = time.Second // of an announced time, or half of it: for what is on its way
)

// keepAlive is how long the connection of an answer may be idle before its next request. Keep-Alive
// has the server's own time in seconds (RFC 2068, 19.7.1), as Node and Apache send it.
func keepAlive(r *http.Response) time.Duration {
	if r.ProtoMajor > 1 {
		return idleFor
	}
	for _, parameters := range r.Header.Values("Keep-Alive") {
		for p := range strings.SplitSeq(parameters, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
			if seconds, err := strconv.ParseUint(value, 10, 32); err == nil && strings.EqualFold(name, "timeout") {
				announced := max(time.Duration(seconds)*time.Second, time.Nanosecond)
				return min(announced-min(keepMargin, announced/2), idleFor)
			}
		}
	}
	return keepUnknown
}
