package hooks

import (
	"context"
	"net/http"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/report"
	"lemma/slots"
)

// What webhooks have in memory, beyond their bodies: the events of a body are forty times as
// large while it is read, and they wait until they are stored.
var (
	limitsOfReads   = slots.Limits{Process: 4 << 20, Workspace: 2 << 20} // bytes of bodies
	limitsOfWaiting = slots.Limits{Process: 40_000, Workspace: 10_000}   // events
)

// read returns what a request reports. leave frees the memory of that.
func (h *Hooks) read(ctx context.Context, a *account, r *http.Request, body []byte) (reports []events.Report, leave func(), err error) {
	at, err := h.clock.Now(ctx)
	if err != nil {
		return nil, nil, err
	}
	request := sender.WebhookRequest{URLs: h.called(r), Header: r.Header, Body: body, At: at}
	of := slots.Resource{Workspace: a.workspace}
	// The check of a body with a signature in it may wait for a certificate. It has few events.
	if _, waits := a.receiver.(sender.SelfSigned); waits {
		if reports, err = a.receive(ctx, request); err != nil {
			return nil, nil, unverified(err)
		}
		leave, err = h.waiting.EnterN(ctx, of, len(reports))
		return reports, leave, err
	}
	// Only the body waits for memory. Most bodies have one event, and one with an array has as many as that.
	n := min(max(1, report.LongestArray(body)), report.MostEvents)
	free, err := h.waiting.EnterN(ctx, of, n)
	if err != nil {
		return nil, nil, err
	}
	read := false
	defer func() {
		if !read { // also after a panic
			free()
		}
	}()
	done, err := h.reads.EnterN(ctx, of, len(body))
	if err != nil {
		return nil, nil, err
	}
	defer done()
	if reports, err = a.receive(ctx, request); err != nil {
		return nil, nil, unverified(err)
	}
	read = true
	return reports, free, nil
}
