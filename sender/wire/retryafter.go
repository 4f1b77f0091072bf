package wire

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// mostRetryAfter bounds what an answer can state. Package sender waits less.
const mostRetryAfter = 24 * time.Hour

// RetryAfter is the time of the Retry-After header (RFC 9110, 10.2.3): seconds, or a
// date, which is measured by the Date header, or by the local clock without one. It is 0
// without a valid header, and at most 24 hours.
func (a *Answer) RetryAfter() time.Duration {
	text := strings.TrimSpace(a.Header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, mostRetryAfter)
	}
	until, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(a.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(0, min(until.Sub(now), mostRetryAfter))
}
