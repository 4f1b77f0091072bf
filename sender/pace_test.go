package sender

import (
	"testing"
	"time"
)

// Windows become as large as the provider is quick, whatever one call takes, and do not stay small
// after a slow moment.
func TestSizesOfWindows(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	parallel := func(call time.Duration, calls int) func(int) time.Duration {
		return func(n int) time.Duration { return call * time.Duration((n+calls-1)/calls) }
	}
	inTurn := func(call time.Duration) func(int) time.Duration {
		return func(n int) time.Duration { return call * time.Duration(n) }
	}
	for _, c := range []struct {
		name        string
		took        func(n int) time.Duration
		call        time.Duration
		least, most int64 // rows in the end
	}{
		{"a server nearby", parallel(2*ms, 32), 2 * ms, 500, 1000},
		{"32 calls of 60 ms at a time", parallel(60*ms, 32), 60 * ms, 32, 100},
		{"of 220 ms", parallel(220*ms, 32), 220 * ms, 32, 100},
		{"of 1.9 s", parallel(1900*ms, 32), 1900 * ms, 20, 40},
		{"of 5 s", parallel(5*time.Second, 32), 5 * time.Second, 20, 40},
		{"one call of 5 ms after the other", inTurn(5 * ms), 5 * ms, 10, 40},
		{"of 60 ms", inTurn(60 * ms), 60 * ms, 1, 3},
		{"of 500 ms", inTurn(500 * ms), 500 * ms, 1, 3},
		{"of 3 s", inTurn(3 * time.Second), 3 * time.Second, 1, 1},
	} {
		p := &pace{}
		p.rows.Store(firstWindow)
		settle := func() (most int64) { // of the last ten windows
			for i := range 50 {
				n := p.size(1000)
				p.adjust(n, c.took(n), c.call)
				if i >= 40 {
					most = max(most, p.rows.Load())
				}
			}
			return most
		}
		before := settle()
		for range 3 { // a slow moment
			n := p.size(1000)
			p.adjust(n, 10*c.took(n)+300*ms, c.call)
		}
		slow := p.rows.Load()
		if after := settle(); before < c.least || before > c.most || after < c.least || after > c.most || slow > before {
			t.Errorf("%s: %d rows, then %d, then %d; want %d to %d", c.name, before, slow, after, c.least, c.most)
		}
	}
}

// A window that was not full shows nothing, and one without an answer shrinks.
func TestWindowsThatShowNothing(t *testing.T) {
	t.Parallel()
	p := &pace{}
	p.rows.Store(100)
	if p.adjust(10, time.Millisecond, time.Millisecond); p.rows.Load() != 100 {
		t.Errorf("%d rows after a short window", p.rows.Load())
	}
	if p.adjust(100, 30*time.Second, 0); p.rows.Load() != 50 {
		t.Errorf("%d rows after one without an answer", p.rows.Load())
	}
}

func TestFirstAnswer(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	at := func(o Outcome, ms int) Receipt {
		return Receipt{Outcome: o, At: begun.Add(time.Duration(ms) * time.Millisecond)}
	}
	for _, c := range []struct {
		name     string
		receipts []Receipt
		want     int
	}{
		{"none", nil, 0},
		{"the first", []Receipt{at(Accepted, 300), at(Accepted, 200), at(Accepted, 250)}, 200},
		{"accepted before refused", []Receipt{at(Rejected, 1), at(Accepted, 300), at(NotAccepted, 2)}, 300},
		{"refused", []Receipt{at(Unknown, 1), at(NotAccepted, 20), at(Rejected, 10), at(NotCalled, 2)}, 10},
		{"unknown", []Receipt{at(Unknown, 1), {Outcome: Accepted}, at(Accepted, 2000), at(Accepted, -5)}, 0},
	} {
		if got := firstAnswer(c.receipts, begun, time.Second); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%s: %s, want %d ms", c.name, got, c.want)
		}
	}
}
