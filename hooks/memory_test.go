package hooks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"lemma"
	"lemma/events"
	"lemma/flows/admission"
	"lemma/pgtest"
	"lemma/sender"
	"lemma/slots"
)

// Events that wait to be stored, and bodies that are being read, are bounded for a workspace,
// however few requests they are in. Those of another workspace are stored meanwhile.
func TestMemoryOfWebhooksIsBounded(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	other := newBundle(pgtest.Shop{T: t, Pool: b.Pool, Workspace: pgtest.Workspace(t, b.Pool)})
	other.accounts = b.accounts // one process
	other.provider = other.create(other.key)
	event := fmt.Sprintf(`{"type":"opened","notification_id":%q},`, b.notification(1))
	all := `{"events":[` + strings.TrimSuffix(strings.Repeat(event, 1000), ",") + `]}`
	for name, c := range map[string]struct {
		of   *slots.Slots
		most int
		left int // too few for the request
	}{
		"events that wait": {h.waiting, limitsOfWaiting.Workspace, 999},
		"bytes":            {h.reads, limitsOfReads.Workspace, len(all) - 1},
	} {
		leave, err := c.of.TryN(slots.Resource{Workspace: b.Workspace}, c.most-c.left)
		b.Must(err)
		if err := b.receive(h, name, all); !admission.IsOverloaded(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := other.receive(h, name, fmt.Sprintf(`{"type":"opened","notification_id":%q}`, other.notification(1))); err != nil {
			t.Errorf("%s: of another workspace: %v", name, err)
		}
		leave()
		for range 3 { // each leaves what it has taken
			if err := b.receive(h, name, all); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if leave, err = c.of.TryN(slots.Resource{Workspace: b.Workspace}, c.most); err != nil {
			t.Errorf("%s: some are still taken: %v", name, err)
		} else {
			leave()
		}
	}
}

// failing is a receiver with a fault of its own.
type failing struct{}

func (failing) Receive(context.Context, sender.WebhookRequest) ([]events.Report, error) {
	panic("index out of range")
}

// A receiver that panics leaves the memory that its events had.
func TestAPanicLeavesItsMemory(t *testing.T) {
	b := setup(t)
	h, a := b.hooks(), &account{workspace: b.Workspace, receiver: failing{}}
	err := lemma.Recovered(func() error {
		_, _, err := h.read(t.Context(), a, b.request("1", "{}"), []byte("{}"))
		return err
	})
	if panicked := new(lemma.Panic); !errors.As(err, &panicked) {
		t.Fatal(err)
	}
	for name, s := range map[string]*slots.Slots{"events that wait": h.waiting, "bytes": h.reads} {
		if n := s.Taken(slots.Resource{Workspace: b.Workspace}); n > 0 {
			t.Errorf("%s: %d are still taken", name, n)
		}
	}
}
