package sender

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	limits "lemma/slots"

	"lemma/notifications"
)

// large gives the messages of all recipients some bytes.
func (b *bundle) large(bytes int) {
	b.T.Helper()
	b.Exec(`update template_versions set subject = 'Hi', html = '', text = '{{ name }}' where workspace_id = $1`, b.Workspace)
	b.Exec(`update notifications set payload = json_build_object('name', rpad(profile_key || ' ', $2, 'x')) where workspace_id = $1`,
		b.Workspace, bytes)
}

// A claim reads as much data as Config.ClaimBytes allows, and its windows read the rest.
func TestAClaimReadsLargeDataByWindow(t *testing.T) {
	b := setup(t)
	refs := b.insert(40, 40, 2)
	b.large(10_000)
	s := b.sender(func(c *Config) { c.ClaimBytes = 55_000 })
	c, err := s.Claim(bg, refs[0])
	b.Must(err)
	read := 0
	for i, r := range c.rows {
		if read += len(r.Payload); (r.Payload != "") != (i < 5) {
			t.Errorf("row %d has %d bytes of data", i, len(r.Payload))
		}
	}
	if len(c.rows) != 40 || read > 55_000 {
		t.Errorf("%d rows have %d bytes", len(c.rows), read)
	}
	_, err = s.giveBack(bg, c, nil, 0)
	b.Must(err)
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 40})
	for i := range 40 {
		sent := b.carrier.sent[addressOf(i)]
		if len(sent) != 1 || len(sent[0].Text) != 10_000 || !strings.HasPrefix(sent[0].Text, fmt.Sprint(i, " ")) {
			t.Errorf("%s has %d messages", addressOf(i), len(sent))
		}
	}
}

func TestAWindowEndsByItsBytes(t *testing.T) {
	b := setup(t)
	b.insert(20, 20, 2)
	b.large(10_000)
	b.work(b.sender(func(c *Config) { c.MaxWindow, c.WindowBytes = 100, 50_000 }))
	b.wantCounts(notifications.Counts{Sent: 20})
	b.WantCount(4, `select count(*) from batch_log where workspace_id = $1 and event = 'window'`, b.Workspace)
}

// hanging is a carrier that answers when it is released.
type hanging struct {
	*scripted
	called, released chan struct{}
}

func (h *hanging) Send(ctx context.Context, messages []Message) []Receipt {
	h.called <- struct{}{}
	<-h.released
	return h.scripted.Send(ctx, messages)
}

// Messages that wait for a server that does not answer take a bounded part of the memory.
// Other batches are given back meanwhile, and sent later.
func TestMessagesInMemoryAreBounded(t *testing.T) {
	b := setup(t)
	refs := b.insert(60, 20, 2)
	b.large(200_000)
	carrier := &hanging{b.carrier, make(chan struct{}, 10), make(chan struct{})}
	s := b.senderOf(Kind{Name: "scripted", Open: func(Account) (Carrier, error) { return carrier, nil }},
		func(c *Config) { c.MaxWindow, c.MessageBytes, c.Lease = 100, 1, time.Hour })
	done := make(chan time.Duration, len(refs))
	for i, ref := range refs {
		go func() {
			again, err := s.Work(bg, ref)
			if err != nil {
				t.Error(err)
			}
			done <- again
		}()
		if i == 0 {
			<-carrier.called // it has the memory that the others wait for
		}
	}
	for range 2 {
		if again := <-done; again == 0 {
			t.Error("a batch without memory is not due again")
		}
	}
	workspace := limits.Resource{Workspace: b.Workspace}
	if taken := s.memory.Taken(workspace); taken < 20*200_000 || taken > threeQuarters(2*firstMemory) {
		t.Errorf("%d bytes are taken", taken)
	}
	b.WantCount(2, `select count(*) from batch_log where workspace_id = $1 and detail like 'waits for memory%'`, b.Workspace)
	close(carrier.released)
	<-done
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 60})
	if taken := s.memory.Taken(workspace); taken != 0 {
		t.Errorf("%d bytes are still taken", taken)
	}
}
