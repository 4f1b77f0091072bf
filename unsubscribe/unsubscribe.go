// Package unsubscribe makes the links by which recipients unsubscribe, and serves the
// page behind them. It guarantees:
//
//   - A link acts on one address only, for as long as its workspace exists. It works
//     when the notification and the profile are gone.
//   - A GET changes nothing. One click (RFC 8058) and the forms of the page are POSTs,
//     and each of them may be repeated.
//   - Nothing but a cause `unsubscribed` is removed: bounces, complaints and manual
//     suppressions stay.
//
// Package links signs the tokens, package suppression stores what recipients choose.
package unsubscribe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/links"
	"lemma/slots"
	"lemma/suppression"
	"lemma/workspaces"
)

// Path is where the page is served; the token follows.
const Path = "/u/"

// Deps are what the pages need.
type Deps struct {
	Pool         *pgxpool.Pool
	Links        *links.Links
	Suppressions *suppression.Suppressions
	Workspaces   *workspaces.Workspaces
	PublicURL    func() string // under which recipients reach this server; nil or empty: there are no links
	Log          *slog.Logger
	Metrics      *Metrics // nil: they are not exported
}

// Metrics are documented in docs/reference/metrics.md.
type Metrics struct {
	refused prometheus.Counter
	busy    *prometheus.CounterVec
}

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_resubscriptions_refused_total",
		Help: "Forms of the preference page that subscribe again after too many changes by their link in an hour."}),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_preference_requests_refused_total",
			Help: "Requests for the preference page that found no place in time, by limit: recipient, workspace, process."}, []string{"limit"})}
	if r != nil {
		r.MustRegister(m.refused, m.busy)
	}
	return m
}

// Pages makes links and serves their pages. It is an http.Handler of Path.
type Pages struct {
	Deps
	slots *slots.Slots
	bytes *slots.Slots // of large pages that are being received
}

// New returns Pages.
func New(d Deps) *Pages {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.PublicURL == nil {
		d.PublicURL = func() string { return "" }
	}
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	refused := func(suffix string) func(string) error {
		return func(limit string) error {
			if limit == "resource" {
				limit = "recipient"
			}
			d.Metrics.busy.WithLabelValues(limit + suffix).Inc()
			return errBusy
		}
	}
	return &Pages{d, slots.New(slots.Limits{Process: 8, Workspace: 6, Resource: 2}, refused("")),
		slots.New(slots.Limits{Process: 64 << 20, Workspace: 16 << 20, Resource: 4 << 20}, refused("_pages"))}
}

// smallPage is the number of bytes up to which pages are bounded by the number of connections
// alone. One with 20 topics has less.
const smallPage = 32 << 10

var errBusy = errors.New("too many requests for the preference page at a time")

// ErrNoPublicURL is the error for links of a server without a public URL.
var ErrNoPublicURL = &lemma.Error{Kind: lemma.Invalid, Code: "public_url_missing",
	Message: "the server has no public URL, so recipients could not unsubscribe; set LEMMA_PUBLIC_URL"}

// Content is what the links of one content have in common.
type Content struct {
	Channel   lemma.Channel
	TopicID   uuid.UUID // what one click unsubscribes from; uuid.Nil: all marketing
	CreatedAt time.Time // decides the key that signs
}

// URLs makes the links of one content. It is safe for concurrent use.
type URLs struct {
	signer  *links.Signer
	prefix  string
	content Content
}

// URLs returns what makes the links of a content, or ErrNoPublicURL.
func (p *Pages) URLs(ctx context.Context, ws uuid.UUID, c Content) (*URLs, error) {
	at := p.PublicURL()
	if at == "" {
		return nil, ErrNoPublicURL
	}
	signer, err := p.Links.Signer(ctx, ws, c.CreatedAt)
	if err != nil {
		return nil, fmt.Errorf("make links to unsubscribe: %w", err)
	}
	return &URLs{signer, at + Path, c}, nil
}

// Of is the link of the recipient of a notification. It is the same each time.
func (u *URLs) Of(origin, key uuid.UUID, address string) string {
	l := link{u.content.Channel, suppression.KeyOf(u.content.Channel, address), u.content.TopicID, origin, key}
	var memory [linkBytes]byte
	return u.signer.URL(links.Unsubscribe, l.payload(memory[:0]), u.prefix)
}

// link is the payload of a token.
type link struct {
	channel   lemma.Channel
	recipient uuid.UUID // key of a suppression: a link shows no address
	topic     uuid.UUID
	origin    uuid.UUID // with key: the notification
	key       uuid.UUID
}

// channels stand in links by their index, which never changes.
var channels = []lemma.Channel{lemma.Email, lemma.SMS, lemma.Push}

const linkBytes = 1 + 4*16

// payload appends the payload.
func (l *link) payload(to []byte) []byte {
	to = append(to, byte(slices.Index(channels, l.channel)))
	for _, id := range [...]*uuid.UUID{&l.recipient, &l.topic, &l.origin, &l.key} {
		to = append(to, id[:]...)
	}
	return to
}

func parse(payload []byte) (l link, ok bool) {
	if len(payload) != linkBytes || int(payload[0]) >= len(channels) {
		return l, false
	}
	l.channel = channels[payload[0]]
	for i, id := range []*uuid.UUID{&l.recipient, &l.topic, &l.origin, &l.key} {
		*id = uuid.UUID(payload[1+16*i:])
	}
	return l, true
}

// visit is the recipient of a link.
type visit struct {
	link
	workspace uuid.UUID
	reader    suppression.Recipient
	page      int // of the topics, from 1 on
}

// visit verifies a token and finds the address, if it is still known.
func (p *Pages) visit(ctx context.Context, host, token string) (v visit, err error) {
	ws, payload, err := p.Links.VerifyAt(ctx, links.Unsubscribe, host, token)
	if err != nil {
		return v, err
	}
	l, ok := parse(payload)
	if !ok {
		return v, lemma.Missing("link")
	}
	return visit{link: l, workspace: ws}, nil
}

// find finds the address of a visit, if it is still known.
func (p *Pages) find(ctx context.Context, v *visit) error {
	var address string
	err := p.Pool.QueryRow(ctx, `
		select coalesce(address, '') from notifications where workspace_id = $1 and origin_id = $2 and key = $3`,
		v.workspace, v.origin, v.key).Scan(&address)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("find recipient of a link: %w", err)
	}
	v.reader = suppression.NewRecipient(v.channel, v.recipient, address)
	return nil
}

// notification is the id of the notification that had the link.
func (v visit) notification() string { return lemma.FormatNotificationID(v.origin, v.key) }
