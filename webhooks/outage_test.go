package webhooks

import (
	"context"
	"testing"
)

// An answer can neither be settled nor put back, since the database takes no writes for
// a moment. The process keeps it, and the receiver is not called again.
func TestAnAnswerOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	outages := 0
	b.hook = func(stage string) {
		switch stage {
		case "called":
			b.Exec(`alter table outbox rename to away`)
		case "not put back":
			if outages++; outages == 2 {
				b.Exec(`alter table away rename to outbox`)
			}
		}
	}
	b.run(b.Webhooks, 1)
	b.hook = nil
	b.due()
	b.run(b.Webhooks, 1)
	settled := b.settled.list()
	if n := len(b.receiver.all()); n != 1 || len(settled) != 1 || !settled[0].Delivered || settled[0].Attempts != 1 {
		t.Errorf("%d calls, %+v", n, settled)
	}
}

// A shutdown does not wait for the end of an outage: the message is called again when
// its lease expires.
func TestAShutdownDuringAnOutage(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	ctx, stop := context.WithCancel(t.Context())
	tries := 0
	b.hook = func(stage string) {
		switch stage {
		case "called":
			b.Exec(`alter table outbox rename to away`)
		case "not put back":
			tries++
			stop()
		}
	}
	if _, err := b.RunOnce(ctx); err != context.Canceled || tries != 1 {
		t.Errorf("%v after %d tries", err, tries)
	}
	b.hook = nil
	b.Exec(`alter table away rename to outbox`)
	b.due()
	b.run(b.Webhooks, 1)
	if n := len(b.receiver.all()); n != 2 {
		t.Errorf("%d calls", n)
	}
}
