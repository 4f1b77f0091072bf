package chaos

import (
	"cmp"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"lemma"
	"lemma/webhooks"
)

// receiver is a customer's system that receives events. It processes each webhook-id of
// a path once. 30 % of the requests fail, some are redirected, and some are processed and
// then answered late or not at all.
type receiver struct {
	*env
	webhooks *webhooks.Webhooks
	url      string

	mu                          sync.Mutex
	bodies                      map[string]map[string]string // by path and webhook-id
	requests, refused, repeated int
}

// receivedEvent is the body of a request.
type receivedEvent struct {
	ID       string
	Type     string
	Sequence int64
	Data     struct {
		Count         int
		Notifications []string `json:"notification_ids"`
	}
}

func (h *env) openReceiver() *receiver {
	h.t.Helper()
	r := &receiver{env: h, webhooks: webhooks.New(webhooks.Deps{Pool: h.Pool, Box: h.Box}, webhooks.Options{AllowPrivate: true}),
		bodies: map[string]map[string]string{}}
	server := httptest.NewServer(r)
	h.t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// subscribe creates an endpoint at a path, which it returns.
func (r *receiver) subscribe(path string, types ...string) string {
	r.t.Helper()
	r.bodies[path] = map[string]string{}
	_, _, err := r.webhooks.Create(r.t.Context(), r.Workspace, webhooks.NewEndpoint{ID: lemma.NewID(), Name: path, URL: r.url + path,
		Subscriptions: []webhooks.Subscription{{Types: types}}})
	r.Must(err)
	return path
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // the worker is gone
	}
	n := rand.IntN(100)
	r.count(&r.requests)
	switch {
	case n < 35:
		r.count(&r.refused)
		if n < 30 {
			w.WriteHeader(http.StatusInternalServerError)
		} else {
			http.Redirect(w, q, r.url+"/elsewhere", http.StatusTemporaryRedirect)
		}
		return
	case r.process(q.URL.Path, q.Header.Get("webhook-id"), string(body)):
		r.count(&r.repeated)
	}
	switch {
	case n < 36:
		r.endLease(q.Header.Get("webhook-id"))
		select { // another request for the message comes, mostly before this answer
		case <-time.After(500 * time.Millisecond):
		case <-q.Context().Done():
		}
	case n < 38:
		panic(http.ErrAbortHandler)
	}
}

// endLease ends the lease of a message that is being sent.
func (r *receiver) endLease(message string) {
	id, _ := webhooks.ParseMessageID(message)
	if _, err := r.Pool.Exec(r.t.Context(), `update outbox set lease_until = now(), due_at = now()
		where workspace_id = $1 and id = $2 and leased_by is not null`, r.Workspace, id); err != nil && r.t.Context().Err() == nil {
		r.t.Error(err)
	}
}

func (r *receiver) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

// process processes a message, and reports whether it was processed before.
func (r *receiver) process(path, id, body string) (known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bodies[path] == nil {
		r.t.Errorf("%s received %s", path, id)
		return false
	}
	before, known := r.bodies[path][id]
	if known && before != body {
		r.t.Errorf("%s was sent as %s and %s", id, before, body)
	}
	r.bodies[path][id] = body
	return known
}

// processed is the number of messages that were processed.
func (r *receiver) processed() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.bodies {
		n += len(all)
	}
	return n
}

// events are the events that a path has processed, by number.
func (r *receiver) events(path string) (all []receivedEvent) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, body := range r.bodies[path] {
		var e receivedEvent
		r.Must(json.Unmarshal([]byte(body), &e))
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b receivedEvent) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return all
}
