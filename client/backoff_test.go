package client

import (
	"context"
	"testing"
	"time"
)

// The pauses between tries grow to a bound, however many tries there are.
func TestPausesOfManyTries(t *testing.T) {
	t.Parallel()
	for _, backOff := range []time.Duration{-time.Second, 0, 1, 250 * time.Millisecond, time.Second, 1 << 40, time.Hour, 1<<63 - 1} {
		c := Client{tries: 200}
		BackOff(backOff)(&c)
		r, err := newRequest("GET", "/v1/flows")
		if err != nil {
			t.Fatal(err)
		}
		for try := 1; try < 200; try++ {
			wait, again := c.again(r, unanswered{context.DeadlineExceeded}, nil, try)
			if !again || wait < 0 || wait > longestWait || backOff >= 250*time.Millisecond && try > 10 && wait < longestWait/2 {
				t.Fatalf("a back-off of %s, try %d: %s, %t", backOff, try, wait, again)
			}
		}
	}
}
