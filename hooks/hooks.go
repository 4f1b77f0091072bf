// Package hooks receives the webhooks of carriers: what they report about messages
// after the call. It guarantees:
//
//   - A request that does not come from the carrier of the provider, or that cannot be
//     read, changes nothing but a counter.
//   - A request is accepted only when all its reports are stored. Requests that arrive
//     together are stored by one statement, up to 2,000 reports.
//   - A report with an id is stored once, however often and wherever it is received.
//     One without an id is stored each time, and counted, up to a bound for each type and
//     notification.
//
// A carrier's package checks signatures and reads bodies (sender.Receiver). Package
// deliveries applies what is stored.
package hooks

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/address"
	"lemma/cache"
	"lemma/clock"
	"lemma/events"
	"lemma/flows/admission"
	"lemma/providers"
	"lemma/sender"
	"lemma/slots"
)

// MostBody is the largest body of a request, in bytes.
const MostBody = sender.MostWebhook

const (
	smallBody = 64 << 10 // larger bodies need memory of their workspace
	together  = 100      // requests that are stored together, at most
	atOnce    = 2_000    // reports that are stored by one statement, at most
)

// Deps are the dependencies of Hooks.
type Deps struct {
	Pool       *pgxpool.Pool
	Providers  *providers.Providers
	Kinds      []sender.Kind
	PublicURLs func() []string // under which carriers reach the server: the current one, and then those before it
	Log        *slog.Logger
	Metrics    *Metrics
}

// Hooks receives webhooks. It is safe for concurrent use.
type Hooks struct {
	pool       *pgxpool.Pool
	publicURLs func() []string
	accounts   *accounts
	known      *known
	gather     *admission.Gatherer[[]events.Received, []events.Recorded]
	large      *largeBodies
	reads      *slots.Slots // see memory.go
	waiting    *slots.Slots
	clock      *clock.Clock
	log        *slog.Logger
	metrics    *Metrics
	noID       rare
	noAddress  rare
}

// New returns Hooks.
func New(d Deps) *Hooks {
	h := &Hooks{pool: d.Pool, publicURLs: d.PublicURLs, accounts: newAccounts(d.Providers, d.Kinds),
		known: newKnown(mostKnown),
		large: newLargeBodies(),
		reads: slots.New(limitsOfReads, isBusy), waiting: slots.New(limitsOfWaiting, isBusy),
		clock: clock.New(d.Pool), log: d.Log, metrics: d.Metrics}
	if h.publicURLs == nil {
		h.publicURLs = func() []string { return nil }
	}
	if h.log == nil {
		h.log = slog.Default()
	}
	if h.metrics == nil {
		h.metrics = NewMetrics(nil)
	}
	for _, k := range d.Kinds { // a counter that begins with its first event has no increase
		if k.Receiver != nil {
			h.metrics.unreadable.WithLabelValues(k.Name, address.Invalid)
			h.metrics.unreadable.WithLabelValues(k.Name, address.NoCountryCode)
		}
	}
	h.gather = admission.NewGatherer(together, h.store)
	return h
}

// ErrTooLarge is the refusal of a body above MostBody.
var ErrTooLarge = errors.New("the body is too large")

// Follow makes what is kept in memory keep to a history.
func (h *Hooks) Follow(of *cache.History) {
	h.known.history = of
	h.accounts.kept.Follow(of)
}

// ErrUnknown is the refusal of a request to a URL that no provider has.
var ErrUnknown = errors.New("there is no such webhook URL")

// Receive stores the reports of one request. Its refusals are ErrTooLarge, ErrUnknown
// and the errors of sender.Receiver; any other error means that the carrier must send
// the request again.
func (h *Hooks) Receive(r *http.Request, carrier, provider string) error {
	began := time.Now()
	err := h.receive(r, carrier, provider)
	if label := Refusal(err); label != "" {
		h.metrics.refused.WithLabelValues(h.label(carrier), label).Inc()
		h.log.DebugContext(r.Context(), "webhook refused", "carrier", carrier, "provider_id", provider, "refusal", label, "error", err)
	}
	h.metrics.took.Observe(time.Since(began).Seconds())
	return err
}

func (h *Hooks) receive(r *http.Request, carrier, provider string) error {
	id, ok := lemma.ParseID(lemma.PrefixProvider, provider)
	if !ok {
		return ErrUnknown
	}
	a, err := h.accounts.find(r.Context(), carrier, id)
	if err != nil {
		return err
	}
	body, done, err := h.body(r, a.workspace)
	if err != nil {
		return err
	}
	defer done()
	repeatable, repetition := h.repetition(a, id, body)
	if repetition {
		h.metrics.duplicates.WithLabelValues(a.kind).Inc()
		return nil
	}
	reports, leave, err := h.read(r.Context(), a, r, body)
	if errors.Is(err, sender.ErrForged) { // its secret may be new: the carrier would not send the request again
		now, changed, failed := h.accounts.changed(r.Context(), carrier, id, a)
		if failed != nil {
			return failed
		}
		if changed {
			a = now
			reports, leave, err = h.read(r.Context(), a, r, body)
		}
	}
	if err != nil {
		return err
	}
	defer leave()
	begun := h.known.history.Now()
	if err := h.record(r.Context(), a, id, reports); err != nil {
		return err
	}
	if repeatable != uuid.Nil && len(reports) > 0 {
		h.known.add(begun, []uuid.UUID{repeatable})
	}
	return nil
}

// repetition reports whether a body with its signature in it was stored already, for the
// provider as it is configured now. The id is what it is known by, or uuid.Nil.
func (h *Hooks) repetition(a *account, provider uuid.UUID, body []byte) (id uuid.UUID, known bool) {
	if _, ok := a.receiver.(sender.SelfSigned); !ok {
		return uuid.Nil, false
	}
	sum := sha256.Sum256(body)
	id = lemma.Key("body/1", provider.String(), strconv.Itoa(a.version), string(sum[:]))
	return id, h.known.has(id)
}

// called are the URLs that the carrier may have called, also behind a proxy.
func (h *Hooks) called(r *http.Request) []string {
	public := h.publicURLs()
	if len(public) == 0 {
		return []string{"https://" + r.Host + r.URL.RequestURI()}
	}
	all := make([]string, len(public))
	for i, base := range public {
		all[i] = base + r.URL.RequestURI()
	}
	return all
}

// URL is the webhook URL of a provider, or "" if carriers cannot reach the server or
// the kind has no webhooks.
func (h *Hooks) URL(kind string, provider uuid.UUID) string {
	public := h.publicURLs()
	if len(public) == 0 || h.accounts.kinds[kind].Receiver == nil {
		return ""
	}
	return public[0] + "/hooks/" + kind + "/" + lemma.FormatID(lemma.PrefixProvider, provider)
}

// body reads the body. A large one needs memory of its workspace, but only once more than smallBody has come:
// a client that sends slowly from the beginning has none.
func (h *Hooks) body(r *http.Request, ws uuid.UUID) (body []byte, done func(), err error) {
	done = func() {}
	if r.ContentLength > MostBody {
		return nil, done, ErrTooLarge
	}
	body, err = io.ReadAll(io.LimitReader(r.Body, smallBody+1))
	if err == nil && len(body) > smallBody {
		var leave func()
		if body, leave, err = h.large.read(r, ws, body); leave == nil {
			return nil, done, err
		}
		done = leave
	}
	switch {
	case err == nil && r.Context().Err() != nil: // it came so slowly that no time is left: its sender repeats it
		done()
		return nil, func() {}, busy
	case err != nil:
		done()
		return nil, func() {}, fmt.Errorf("read the body: %w: %w", sender.ErrUnreadable, err)
	case len(body) > MostBody:
		done()
		return nil, func() {}, ErrTooLarge
	}
	return body, done, nil
}

var busy = &lemma.Error{Kind: lemma.Unavailable, Code: admission.CodeOverloaded,
	Message: "too many webhooks are being read and stored; try again in a moment"}

func isBusy(string) error { return busy }

// record stores the reports that are not known to be stored. An address that cannot be read
// is left out of its report.
func (h *Hooks) record(ctx context.Context, a *account, provider uuid.UUID, reports []events.Report) error {
	var all []events.Received
	var ids []uuid.UUID
	var unread []string // why the address of each report cannot be read
	for _, r := range reports {
		if r.ID != "" {
			id := lemma.Key("report/1", provider.String(), r.ID)
			if h.known.has(id) {
				h.metrics.duplicates.WithLabelValues(a.kind).Inc()
				continue
			}
			ids = append(ids, id)
		}
		reason := ""
		if r.Address != "" {
			r.Address, reason = address.Reported(a.channel, r.Address)
		}
		all = append(all, events.Received{ProviderID: provider, Channel: a.channel, Report: r})
		unread = append(unread, reason)
	}
	if len(all) == 0 {
		return nil
	}
	begun := h.known.history.Now()
	done, err := h.gather.Do(ctx, a.workspace, all)
	if err != nil {
		return err
	}
	h.known.add(begun, ids)
	h.count(a, provider, all, done, unread)
	return nil
}

// store stores the requests of a workspace that arrived together, by statements of at most
// atOnce reports, so that their memory and their time are bounded. If one fails, all
// requests are sent again, and what is stored by then is known by its id.
func (h *Hooks) store(ctx context.Context, ws uuid.UUID, requests [][]events.Received) ([][]events.Recorded, error) {
	var all []events.Received
	for _, r := range requests {
		all = append(all, r...)
	}
	var done []events.Recorded
	for some := range slices.Chunk(all, atOnce) {
		recorded, err := events.Receive(ctx, h.pool, ws, some)
		if err != nil {
			return nil, err
		}
		done = append(done, recorded...)
	}
	out := make([][]events.Recorded, len(requests))
	for i, r := range requests {
		out[i], done = done[:len(r)], done[len(r):]
	}
	return out, nil
}

func (h *Hooks) count(a *account, provider uuid.UUID, all []events.Received, done []events.Recorded, unread []string) {
	for i, r := range all {
		if r.Report.ID == "" {
			h.metrics.noID.WithLabelValues(a.kind).Inc()
			if h.noID.now() {
				h.log.Warn("a carrier reports events without an id; each is stored, also when it is repeated, up to a bound",
					"carrier", a.kind, "provider_id", lemma.FormatID(lemma.PrefixProvider, provider), "type", r.Report.Type, "flood", done[i].Flood)
			}
		}
		switch {
		case done[i].Flood:
			h.metrics.floods.WithLabelValues(a.kind).Inc()
			continue
		case !done[i].New:
			h.metrics.duplicates.WithLabelValues(a.kind).Inc()
			continue
		case !done[i].Matched && unread[i] != "":
			h.unreadable(a, provider, r.Report, unread[i])
		case !done[i].Matched && !isAboutAddress(r.Report) && !lemma.IsTestID(r.Report.Notification):
			h.metrics.unmatched.WithLabelValues(a.kind).Inc()
		}
		h.metrics.events.WithLabelValues(a.kind, string(r.Report.Type)).Inc()
		if at := r.Report.OccurredAt; r.Report.Type.Prompt() && !at.IsZero() {
			h.metrics.lag.WithLabelValues(a.kind).Observe(max(0, time.Since(at).Seconds()))
		}
	}
}

// isAboutAddress reports whether a report names only an address, such as STOP.
func isAboutAddress(r events.Report) bool { return r.Notification == "" && r.Address != "" }

// unreadable counts an event about an address that cannot be read, which has no effect. The
// carrier has the address by the ids; a log has none.
func (h *Hooks) unreadable(a *account, provider uuid.UUID, r events.Report, reason string) {
	h.metrics.unreadable.WithLabelValues(a.kind, reason).Inc()
	if h.noAddress.now() {
		h.log.Warn("the address of a provider event cannot be read, so that the event has no effect", "carrier", a.kind,
			"provider_id", lemma.FormatID(lemma.PrefixProvider, provider), "type", r.Type, "reason", reason, "event", r.ID,
			"carrier_id", r.CarrierID)
	}
}

// label bounds the values of the label carrier.
func (h *Hooks) label(carrier string) string {
	if _, ok := h.accounts.kinds[carrier]; ok {
		return carrier
	}
	return "unknown"
}
