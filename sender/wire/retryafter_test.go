package wire

import (
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := "Wed, 21 Oct 2026 07:28:00 GMT"
	for text, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, " 5 ": 5 * time.Second, "0": 0, "999999": mostRetryAfter, "-1": 0, "soon": 0, "1.5": 0,
		"99999999999999999999":          0,
		"Wed, 21 Oct 2026 07:30:00 GMT": 2 * time.Minute, "Wed, 21 Oct 2026 07:00:00 GMT": 0, "Wed, 21 Oct 2037 07:00:00 GMT": mostRetryAfter,
		"Wednesday, 21-Oct-26 07:30:00 GMT": 2 * time.Minute, // RFC 850
	} {
		a := Answer{Header: http.Header{"Retry-After": {text}, "Date": {now}}}
		if got := a.RetryAfter(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	date := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	if got := (&Answer{Header: http.Header{"Retry-After": {date}}}).RetryAfter(); got < 50*time.Second || got > time.Minute {
		t.Errorf("without a Date header: %s", got)
	}
}

// FuzzRetryAfter: whatever the headers, the wait is from 0 to 24 hours.
func FuzzRetryAfter(f *testing.F) {
	f.Add("3", "")
	f.Add("Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:00 GMT")
	f.Add("-1", "x")
	f.Add("99999999999999999999", "\x00")
	f.Fuzz(func(t *testing.T, after, date string) {
		a := Answer{Header: http.Header{"Retry-After": {after}, "Date": {date}}}
		if wait := a.RetryAfter(); wait < 0 || wait > 24*time.Hour {
			t.Errorf("%v for %q at %q", wait, after, date)
		}
	})
}
