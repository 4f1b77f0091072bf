package wire

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"lemma/dial"
	"lemma/sender"
	"lemma/sender/trace"
)

// recorder records requests and answers in the trace of an account. Of a server at a
// private address it records only the status of an answer, unless the operator allows
// more: otherwise a user could read the answers of any service in the operator's network
// by entering its address.
type recorder struct {
	trace       *trace.Trace // nil: nothing is recorded
	showPrivate bool
	hidden      atomic.Bool
}

const hiddenAnswer = "[hidden: the server has a private address]"

func (r *recorder) connected(address string, conn net.Conn) {
	if r.trace == nil {
		return
	}
	if !r.showPrivate && dial.IsPrivate(conn) {
		r.hidden.Store(true)
	}
	r.trace.Connected(address)
}

func (r *recorder) secured(s tls.ConnectionState) { r.trace.Secured(s, r.hidden.Load()) }

// request records the request before it is sent.
func (r *recorder) request(q Request) {
	if r.trace == nil {
		return
	}
	r.trace.Sent(trace.PartLine, http.MethodPost+" "+q.URL.String())
	r.trace.Sent(trace.PartHeader, r.header(q.Header))
	r.trace.SentBody(shown(q.Body), len(q.Body))
}

// secretHeader matches the names of headers whose values are not shown.
var secretHeader = regexp.MustCompile(`(?i)auth|token|secret|signature|password|credential|cookie|session|api-?key|crypto-key`)

// header is the text of a header. What it leaves out is left out of later texts too, since
// a server may repeat it.
func (r *recorder) header(h http.Header) string {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			if secretHeader.MatchString(name) && !strings.EqualFold(name, "WWW-Authenticate") {
				r.trace.Secret(value)
				value = "[redacted]"
			}
			fmt.Fprintf(&lines, "%s: %s\n", name, value)
		}
	}
	return strings.TrimSuffix(lines.String(), "\n")
}

func (r *recorder) answer(response *http.Response, a *Answer) {
	if r.trace == nil {
		return
	}
	if r.hidden.Load() {
		r.trace.Received(trace.PartLine, fmt.Sprintf("%s %d", response.Proto, a.Status))
		r.trace.Received(trace.PartHeader, hiddenAnswer)
		return
	}
	r.trace.Received(trace.PartLine, response.Proto+" "+response.Status)
	r.trace.Received(trace.PartHeader, r.header(a.Header))
	r.trace.ReceivedBody(shown(a.Body), len(a.Body))
	if !a.Whole {
		r.trace.Failed("the answer ends early, or is longer than 64 KiB")
	}
}

// shown is the text of a body; empty for binary data.
func shown(body []byte) string {
	if !utf8.Valid(body) {
		return ""
	}
	return string(body)
}

func (r *recorder) failed(one sender.Receipt) {
	text := one.Detail
	if text == "" {
		text = one.Reason
	}
	r.trace.Failed(text)
}
