package unsubscribe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audit"
	"lemma/fence"
	"lemma/slots"
	"lemma/suppression"
	"lemma/tracking"
)

const (
	maxBody = 64 << 10        // bytes of a form: the ids of 200 topics, twice
	maxTime = 5 * time.Second // of a request
)

// ServeHTTP shows the page for GET and HEAD, and carries out a POST: one click, or a form
// of the page. It does so although the client does not wait for the answer: nobody would
// repeat it.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if r.Method == http.MethodPost {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	setHeaders(w.Header())
	if err := p.serve(ctx, w, r); err != nil {
		p.fail(ctx, w, err)
	}
}

// setHeaders sets what all answers have.
func setHeaders(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	h.Set("Content-Security-Policy", policy(""))
}

// serve verifies the token before it reads anything else.
func (p *Pages) serve(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	v, err := p.visit(ctx, r.Host, strings.TrimPrefix(r.URL.Path, Path))
	if err != nil {
		return err
	}
	v.page = pageOf(r.URL.Query())
	var form url.Values
	if r.Method == http.MethodPost {
		form, err = readForm(w, r)
		if err = errors.Join(err, ctx.Err()); err != nil { // it may have come so slowly that no time is left
			return fmt.Errorf("%w: %w", errForm, err)
		}
	}
	a, err := p.answer(ctx, v, r.Method, form)
	if err != nil {
		return err
	}
	leave, err := p.sendable(v, &a)
	if err != nil {
		return err
	}
	defer leave()
	a.write(w)
	return nil
}

// sendable takes the memory for a large page until it has been written. Without it a form that
// was carried out is answered by one sentence.
func (p *Pages) sendable(v visit, a *answer) (leave func(), err error) {
	if len(a.body) <= smallPage {
		return func() {}, nil
	}
	leave, err = p.bytes.TryN(slots.Resource{Workspace: v.workspace, ID: v.recipient}, len(a.body))
	if err != nil && a.saved != "" {
		*a = answer{body: []byte(a.saved), plain: true}
		return func() {}, nil
	}
	return leave, err
}

// answer does what a request asks for. It leaves its slot before the answer is written, since
// a client may read slowly or not at all. One recipient has few slots, whichever of their links
// is used, so that who has a link does not keep the others of the workspace from unsubscribing.
func (p *Pages) answer(ctx context.Context, v visit, method string, form url.Values) (answer, error) {
	leave, err := p.slots.Enter(ctx, slots.Resource{Workspace: v.workspace, ID: v.recipient})
	if err != nil {
		return answer{}, err
	}
	defer leave()
	if err := p.find(ctx, &v); err != nil {
		return answer{}, err
	}
	if method != http.MethodPost {
		return p.render(ctx, v, false)
	}
	ctx, _ = audit.With(ctx, audit.Record{WorkspaceID: v.workspace, ActorType: audit.Link, Action: actionOf(form),
		ResourceType: "suppressions", ResourceID: v.notification()})
	if strings.EqualFold(form.Get("List-Unsubscribe"), "One-Click") {
		return unsubscribed, p.unsubscribe(ctx, v, v.topic, "one click in ")
	}
	if err := p.act(ctx, v, form); err != nil {
		return answer{}, err
	}
	return p.render(ctx, v, true)
}

// errForm reports a form that cannot be read, or that the page does not have.
var errForm = errors.New("the form is not one of the page")

// act carries out a form of the page.
func (p *Pages) act(ctx context.Context, v visit, form url.Values) error {
	switch form.Get("action") {
	case "none":
		return p.unsubscribe(ctx, v, uuid.Nil, "page of ")
	case "all":
		return p.resubscribe(ctx, v)
	case "topics":
		on := topics(form["on"])
		off := slices.DeleteFunc(topics(form["shown"]), func(id uuid.UUID) bool { return slices.Contains(on, id) })
		if err := p.unsubscribeFrom(ctx, v, off); err != nil { // first, since the other may be refused
			return err
		}
		return p.resubscribeTo(ctx, v, on)
	}
	return errForm
}

// actionOf is the action of a form in the audit log.
func actionOf(form url.Values) string {
	switch form.Get("action") {
	case "all":
		return "resubscribe"
	case "topics":
		return "setTopics"
	}
	return "unsubscribe"
}

// unsubscribe counts the message if it is the one that changed something.
func (p *Pages) unsubscribe(ctx context.Context, v visit, topic uuid.UUID, by string) error {
	return fence.Transact(ctx, p.Pool, func(tx pgx.Tx) error {
		changed, err := suppression.Unsubscribe(ctx, tx, v.workspace, v.reader, topic, by+v.notification())
		if err == nil && !changed {
			err = fence.ErrUnchanged
		}
		if err != nil {
			return err
		}
		return tracking.Unsubscribed(ctx, tx, v.workspace, tracking.Notification{Origin: v.origin, Key: v.key})
	})
}

// unsubscribeFrom counts the message if the recipient unsubscribes from a topic, also another than its own.
func (p *Pages) unsubscribeFrom(ctx context.Context, v visit, topics []uuid.UUID) error {
	return fence.Transact(ctx, p.Pool, func(tx pgx.Tx) error {
		from, err := suppression.UnsubscribeFrom(ctx, tx, v.workspace, v.reader, topics)
		if err == nil && len(from) == 0 {
			err = fence.ErrUnchanged
		}
		if err != nil {
			return err
		}
		return tracking.Unsubscribed(ctx, tx, v.workspace, tracking.Notification{Origin: v.origin, Key: v.key})
	})
}

func (p *Pages) resubscribe(ctx context.Context, v visit) error {
	return p.unlessTooOften(ctx, v, func(tx pgx.Tx) (bool, error) { return suppression.Resubscribe(ctx, tx, v.workspace, v.reader) })
}

func (p *Pages) resubscribeTo(ctx context.Context, v visit, topics []uuid.UUID) error {
	return p.unlessTooOften(ctx, v, func(tx pgx.Tx) (bool, error) {
		return suppression.ResubscribeTo(ctx, tx, v.workspace, v.reader, topics)
	})
}

// mostChanges is after how many changes by a link in an hour its recipient cannot subscribe
// again. They can always unsubscribe, which changes something once.
const mostChanges = 20

var errTooOften = errors.New("the preferences were changed too often by a link")

// unlessTooOften subscribes. Requests at the same time may exceed the limit by their number.
func (p *Pages) unlessTooOften(ctx context.Context, v visit, subscribe func(pgx.Tx) (changed bool, err error)) error {
	return fence.Transact(ctx, p.Pool, func(tx pgx.Tx) error {
		changed, err := subscribe(tx)
		if err == nil && !changed {
			err = fence.ErrUnchanged
		}
		if err != nil {
			return err
		}
		n, err := audit.Recent(ctx, tx, v.workspace, audit.Link, v.notification(), time.Hour, mostChanges)
		if err == nil && n == mostChanges {
			p.Metrics.refused.Inc()
			err = errTooOften
		}
		return err
	})
}

// topics reads ids of topics. Other texts are ignored.
func topics(texts []string) []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(texts))
	for _, text := range texts {
		if id, ok := lemma.ParseID(lemma.PrefixTopic, text); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// readForm reads a form of either type. Requests without a type are forms too: some
// mail clients send none.
func readForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if text := r.Header.Get("Content-Type"); len(text) <= maxType {
		if kind, _, _ := mime.ParseMediaType(text); kind == "multipart/form-data" {
			return readParts(r)
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return url.ParseQuery(string(body))
}

// maxType is how many bytes of a Content-Type, or of a Content-Disposition, are parsed: 15 KB take 4 ms.
const maxType = 2000

// readParts reads the fields of a form as multipart/form-data.
func readParts(r *http.Request) (url.Values, error) {
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, err
	}
	form := url.Values{}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return form, nil
		}
		if err != nil {
			return nil, err
		}
		if len(part.Header.Get("Content-Disposition")) > maxType {
			return nil, errors.New("the Content-Disposition of a part is too long")
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, err
		}
		if name := part.FormName(); name != "" && part.FileName() == "" {
			form.Add(name, string(value))
		}
	}
}

func (p *Pages) fail(ctx context.Context, w http.ResponseWriter, err error) {
	switch {
	case lemma.KindOf(err) == lemma.NotFound:
		plain(w, http.StatusNotFound, "This link is not valid, or no longer valid. To unsubscribe, write to the sender of the message.")
	case errors.Is(err, errForm):
		plain(w, http.StatusBadRequest, "The form cannot be read.")
	case errors.Is(err, errTooOften):
		w.Header().Set("Retry-After", "3600")
		plain(w, http.StatusTooManyRequests,
			"Your preferences were changed too often. You can subscribe again in an hour, and unsubscribe at any time.")
	default:
		// A metric counts the former, since one client can cause many. Of the latter the client has gone.
		if !errors.Is(err, errBusy) && !errors.Is(err, context.Canceled) {
			p.Log.ErrorContext(ctx, "preference page failed", "error", err)
		}
		w.Header().Set("Retry-After", "10")
		plain(w, http.StatusServiceUnavailable, "This page is not available now. Please try again in a minute.")
	}
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}
