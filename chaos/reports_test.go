package chaos

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
)

// reporter is a carrier that accepts each message and reports it afterwards, in the order
// of the acceptances. Its kinds are the customer's own service, Amazon SES and Twilio.
type reporter struct {
	answers
	settings []string // of workers that use it
	send     func(event) (stored bool)
	atOnce   int  // events that are sent at the same time
	onlyOwn  bool // an event names a message, so it cannot be about the address of another

	mu       sync.Mutex
	accepted []acceptance
	calls    map[string]int
	delay    time.Duration // of the answer to each message
	silent   bool          // no event is sent
	queue    []event
	visible  map[string]time.Time // by address: when it was seen as suppressed

	// loses and more are the test's: whether the event of an acceptance is lost, and
	// what happens after it.
	loses func(a acceptance) bool
	more  func(a acceptance) []event
	lost  map[string]bool // notifications with a lost event; true if it is of the first attempt
	cut   map[string]bool // notifications whose first call ended before its answer: its worker was killed
}

type acceptance struct {
	delivery
	attempt  int
	at       time.Time
	callback string          // where Twilio reports
	held     <-chan struct{} // what its answer waits for; nil: nothing
}

// event is an event in the generic format.
type event struct {
	ID           string     `json:"id"`
	Type         string     `json:"type"`
	Notification string     `json:"notification_id,omitempty"`
	Attempt      int        `json:"attempt,omitempty"`
	Address      string     `json:"address,omitempty"`
	OccurredAt   time.Time  `json:"occurred_at"`
	of           acceptance // what it reports
}

func newReporter(settings ...string) *reporter {
	return &reporter{settings: append(settings, eventTimes...), atOnce: 1, calls: map[string]int{}, lost: map[string]bool{},
		cut: map[string]bool{}, visible: map[string]time.Time{}}
}

// serveTLS serves the API of a carrier to workers, which trust it.
func (r *reporter) serveTLS(t *testing.T, handler http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "carrier.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	r.settings = append(r.settings, "SSL_CERT_FILE="+file)
	return s.URL
}

// accept accepts a message whose whole body has arrived, also when its sender is gone.
// It returns when the answer is due.
func (r *reporter) accept(request *http.Request, a acceptance) {
	a.held = r.arrive()
	time.Sleep(r.add(&a))
	await(a.held)
	if a.attempt == 1 && request.Context().Err() != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cut[a.notification] = true
	}
}

// add remembers an acceptance and queues its events. It returns the delay of the answer.
func (r *reporter) add(a *acceptance) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.at = time.Now()
	r.accepted = append(r.accepted, *a)
	r.calls[a.notification]++
	var all []event
	if r.loses != nil && r.loses(*a) {
		r.lost[a.notification] = r.lost[a.notification] || a.attempt == 1
	} else {
		all = append(all, event{Type: "delivered", Notification: a.notification, Attempt: a.attempt})
	}
	if r.more != nil {
		all = append(all, r.more(*a)...)
	}
	for _, e := range all {
		e.ID, e.OccurredAt, e.of = lemma.NewID().String(), a.at, *a
		r.queue = append(r.queue, e)
	}
	return r.delay
}

// publish sends the events until the test ends.
func (r *reporter) publish(t *testing.T) {
	ended, stop := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-ended })
	go func() {
		defer close(ended)
		every := time.NewTicker(10 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-stop:
				return
			case <-every.C:
				for r.publishDue() == r.atOnce {
				}
			}
		}
	}()
}

// publishDue sends the oldest events that are due, and returns how many were stored.
// Those that were not are sent again, with all after them.
func (r *reporter) publishDue() (stored int) {
	due := r.due(r.atOnce)
	results := make([]bool, len(due))
	var all sync.WaitGroup
	for i, e := range due {
		all.Go(func() { results[i] = r.send(e) })
	}
	all.Wait()
	for stored < len(due) && results[stored] {
		stored++
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = r.queue[stored:]
	return stored
}

// seeSuppressed records each address from when it is suppressed at the latest, until the test
// ends. An event suppresses an address when it is applied, and not when it is stored.
func (r *reporter) seeSuppressed(h *env) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	h.t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			rows, _ := h.Pool.Query(ctx, `select address from suppressions where workspace_id = $1`, h.Workspace)
			all, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil && ctx.Err() == nil {
				h.t.Error(err)
				return
			}
			r.change(func() {
				for _, address := range all {
					r.isSuppressed(address)
				}
			})
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
}

// isSuppressed records that an address is suppressed from now on at the latest.
func (r *reporter) isSuppressed(address string) {
	if _, known := r.visible[address]; !known {
		r.visible[address] = time.Now()
	}
}

// allStored reports that the events of all acceptances are stored.
func (r *reporter) allStored() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) == 0
}

// change changes the reporter while it is used.
func (r *reporter) change(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *reporter) due(most int) []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent {
		return nil
	}
	most = min(len(r.queue), most)
	return r.queue[:most:most]
}

func post(url string, header http.Header, body []byte) (status int, err error) {
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header = header
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// delivered is part of carrier.
func (r *reporter) delivered() (all []delivery) {
	for _, a := range r.acceptances() {
		all = append(all, a.delivery)
	}
	return all
}

// requests is part of carrier.
func (r *reporter) requests(notification string) (bodies, deferred int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[notification], 0
}

func (r *reporter) acceptances() []acceptance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clip(r.accepted)
}

// received is how many messages were accepted.
func (r *reporter) received() int { return len(r.acceptances()) }
