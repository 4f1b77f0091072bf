package sender

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"lemma"
	"lemma/events"
	"lemma/notifications"
	"lemma/suppression"
)

// suppress suppresses the addresses of recipients.
func (b *bundle) suppress(cause string, recipients ...int) {
	b.T.Helper()
	for _, i := range recipients {
		_, _, err := suppression.New(b.Pool).Add(context.Background(), b.Workspace,
			suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: addressOf(i), Cause: cause})
		b.Must(err)
	}
}

// An address that was suppressed after its notification was written is not called.
func TestASuppressedAddressIsNotCalled(t *testing.T) {
	b := setup(t)
	b.insert(6, 3, 2)
	b.suppress(suppression.HardBounce, 1)
	b.suppress(suppression.Unsubscribed, 3, 4, 5) // a whole batch
	b.work(b.sender())
	for i, sent := range []bool{true, false, true, false, false, false} {
		if status, reason := b.status(i); (b.carrier.called(addressOf(i)) == 1) != sent || (status == "sent") != sent ||
			(reason == "suppressed") == sent {
			t.Errorf("%d is %s (%s) after %d calls", i, status, reason, b.carrier.called(addressOf(i)))
		}
	}
	b.wantCounts(notifications.Counts{Sent: 2, Skipped: 4})
	b.WantCount(1, `select count(*) from attempts where workspace_id = $1 and reason = 'suppressed' and detail = 'hard_bounce'`,
		b.Workspace)
}

// A recipient that has unsubscribed from the topic is not called, also in a workspace
// without suppressions.
func TestARecipientThatHasUnsubscribedFromTheTopicIsNotCalled(t *testing.T) {
	b := setup(t)
	b.insert(2, 2, 2)
	topics := suppression.New(b.Pool)
	topic, err := topics.CreateTopic(context.Background(), b.Workspace, suppression.NewTopic{ID: lemma.NewID(), Name: "News"})
	b.Must(err)
	b.Exec(`update contents set topic_id = $2 where workspace_id = $1`, b.Workspace, topic.ID)
	b.Must(topics.SetTopic(context.Background(), b.Workspace, topic.ID, lemma.Email, addressOf(0), false))
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 1, Skipped: 1})
	if b.carrier.called(addressOf(0)) != 0 {
		t.Error("it was called")
	}
}

// A transactional message is stopped by bounces and complaints alone.
func TestATransactionalMessageToAnUnsubscribedAddress(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	b.Exec(`update contents set transactional = true where workspace_id = $1`, b.Workspace)
	b.suppress(suppression.Unsubscribed, 0)
	b.suppress(suppression.Manual, 1)
	b.suppress(suppression.Complaint, 2)
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 2, Skipped: 1})
	if b.carrier.called(addressOf(2)) != 0 {
		t.Error("the address that complained was called")
	}
}

// An address that is suppressed while its batch is being sent is not called by a later
// window.
func TestASuppressionDuringASend(t *testing.T) {
	b := setup(t)
	ref := b.insert(6, 6, 2)[0]
	s := b.sender(func(c *Config) { c.MaxWindow, c.SuppressionAge = 2, time.Nanosecond })
	finish := b.pausedWork(s, ref, "called", 1)
	var later []int // recipients of the windows that are not open yet
	for i := range 6 {
		if b.carrier.called(addressOf(i)) == 0 {
			later = append(later, i)
		}
	}
	b.suppress(suppression.Complaint, later...)
	finish()
	b.wantCounts(notifications.Counts{Sent: int64(6 - len(later)), Skipped: int64(len(later))})
	for _, i := range later {
		if b.carrier.called(addressOf(i)) != 0 {
			t.Errorf("%d was called after it was suppressed", i)
		}
	}
	if len(later) != 4 {
		t.Errorf("%d were left", len(later))
	}
}

// A second attempt is not made for an address that is suppressed meanwhile. Its
// outcome stays unknown.
func TestASuppressionBeforeASecondAttempt(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	s := b.sender()
	b.work(s)
	b.suppress(suppression.Unsubscribed, 0)
	b.reap(s)
	b.makeDue()
	b.work(s)
	if status, reason := b.status(0); status != "orphaned" || reason != "unknown_then_skipped" || b.carrier.called(addressOf(0)) != 1 {
		t.Errorf("%s (%s) after %d calls", status, reason, b.carrier.called(addressOf(0)))
	}
}

// A recipient that has unsubscribed at the carrier is suppressed there and then, and gets
// no marketing from the next origin either.
func TestARecipientThatUnsubscribedAtTheCarrierIsSuppressed(t *testing.T) {
	for reason, cause := range map[string]string{ReasonUnsubscribed: suppression.Unsubscribed,
		ReasonUnregistered: suppression.TokenUnregistered, ReasonUnknownRecipient: suppression.HardBounce, "recipient_rejected": ""} {
		t.Run(reason, func(t *testing.T) {
			b := setup(t)
			b.insert(4, 4, 2)
			b.carrier.then[addressOf(1)], b.carrier.then[addressOf(2)] = []Outcome{Rejected}, []Outcome{Rejected}
			b.carrier.reason = reason
			b.work(b.sender())
			b.wantCounts(notifications.Counts{Sent: 2, Failed: 2})
			found, err := suppression.Check(context.Background(), b.Pool, b.Workspace, suppression.Message{Channel: lemma.Email},
				[]string{addressOf(0), addressOf(1), addressOf(2), addressOf(3)})
			b.Must(err)
			var want []suppression.Found
			if cause != "" {
				want = []suppression.Found{{Index: 1, Cause: cause}, {Index: 2, Cause: cause}}
			}
			if diff := cmp.Diff(want, found, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An address that a carrier has rejected for good and that cannot be suppressed is logged:
// the next message to it is rejected too.
func TestARejectedAddressThatCannotBeSuppressedIsLogged(t *testing.T) {
	b := setup(t)
	b.insert(2, 2, 2)
	const invalid = "nobody"
	b.Exec(`update notifications set address = $2 where key = $1`, keyOf(1), invalid)
	b.carrier.then[invalid], b.carrier.then[addressOf(0)] = []Outcome{Rejected}, []Outcome{Rejected}
	b.carrier.reason = ReasonUnsubscribed
	s := b.sender()
	var out bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&out, nil))
	b.work(s)
	b.wantCounts(notifications.Counts{Failed: 2})
	b.WantCount(1, `select count(*) from suppressions where workspace_id = $1`, b.Workspace)
	if text := out.String(); !strings.Contains(text, "are not suppressed") || !strings.Contains(text, "1 addresses are not valid") {
		t.Error(text)
	}
}

// What changes while a window waits for the provider's rate, or while the commit that opens
// it takes long, holds for that window: the check before may be older than SuppressionAge by
// then.
func TestASuppressionBeforeAWindow(t *testing.T) {
	for name, point := range map[string]string{"waits": "rated", "commits": "committing"} {
		t.Run(name, func(t *testing.T) { testSuppressionBeforeAWindow(t, point) })
	}
}

func testSuppressionBeforeAWindow(t *testing.T, point string) {
	b := setup(t)
	b.insert(4, 4, 2)
	row := b.recipients()
	s := b.sender(func(c *Config) { c.MaxWindow, c.SuppressionAge = 2, time.Nanosecond })
	windows := 0
	s.Hook = func(_ context.Context, at string, _ notifications.Ref) {
		if at != point {
			return
		}
		switch windows++; windows {
		case 1:
			b.suppress(suppression.Complaint, row[1]) // one of the window
		case 2:
			b.suppress(suppression.Complaint, row[2:]...) // the whole window
		}
	}
	b.work(s)
	for i, calls := range []int{1, 0, 0, 0} {
		if n := b.carrier.called(addressOf(row[i])); n != calls {
			t.Errorf("%d was called %d times", i, n)
		}
	}
	b.wantCounts(notifications.Counts{Sent: 1, Skipped: 3})
}

// A second attempt is not called if evidence about the first comes before its window, also
// while the commit that opens the window takes long.
func TestEvidenceBeforeAWindow(t *testing.T) {
	for name, points := range map[string][]string{"waits and windows": {"rated", "called"}, "commits": {"committing"}} {
		t.Run(name, func(t *testing.T) { testEvidenceBeforeAWindow(t, points) })
	}
}

func testEvidenceBeforeAWindow(t *testing.T, points []string) {
	b := setup(t)
	b.insert(3, 3, 2)
	row := b.recipients()
	b.carrier.rest = Unknown
	s := b.sender(func(c *Config) { c.MaxWindow, c.SuppressionAge = 1, time.Nanosecond })
	b.work(s)
	b.expireLeases()
	b.reap(s)
	b.carrier.rest = Accepted
	b.makeDue()
	reached := 0
	s.Hook = func(ctx context.Context, at string, _ notifications.Ref) {
		if !slices.Contains(points, at) {
			return
		}
		reached++
		if reached == 2 || reached > 3 { // before the window of the second row
			return
		}
		i := row[reached-1]
		_, err := events.Receive(ctx, b.Pool, b.Workspace, []events.Received{{ProviderID: b.provider, Report: events.Report{
			ID: addressOf(i), Type: events.TypeDelivered, Notification: lemma.FormatNotificationID(b.origin, keyOf(i)), Attempt: 1}}})
		b.Must(err)
	}
	b.work(s)
	for i, calls := range []int{1, 2, 1} {
		if n := b.carrier.called(addressOf(row[i])); n != calls {
			t.Errorf("%d was called %d times", i, n)
		}
	}
	b.wantCounts(notifications.Counts{Sent: 3, Retried: 3})
}
