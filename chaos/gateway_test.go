package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/signing"
)

// webhookGateway is a customer's HTTP service. It accepts each message, and reports it to
// `lemma serve` by signed webhooks, in the order of the acceptances.
type webhookGateway struct {
	key    []byte
	public string // URL of lemma serve
	hook   string // URL of the provider's webhooks

	mu       sync.Mutex
	accepted []acceptance
	calls    map[string]int
	delay    time.Duration // of the answer to each message
	lag      time.Duration // of events
	queue    []event

	// loses and more are the test's: whether the event of an acceptance is lost, and
	// further events after it.
	loses func(a acceptance) bool
	more  func(a acceptance) []event
	lost  map[string]bool // notifications with a lost event; true if it is of the first attempt
}

type acceptance struct {
	delivery
	attempt int
	at      time.Time
}

// event is an event in the generic format.
type event struct {
	ID           string    `json:"id"`
	Type         string    `json:"type"`
	Notification string    `json:"notification_id,omitempty"`
	Attempt      int       `json:"attempt,omitempty"`
	Address      string    `json:"address,omitempty"`
	OccurredAt   time.Time `json:"occurred_at"`
}

// openGateway makes the gateway, the provider for it and the `lemma serve` process that
// receives its events.
func (h *env) openGateway() *webhookGateway {
	h.t.Helper()
	g := &webhookGateway{key: []byte("0123456789abcdef0123456789abcdef"), calls: map[string]int{}, lost: map[string]bool{}}
	server := httptest.NewServer(http.HandlerFunc(g.accept))
	h.t.Cleanup(server.Close)
	h.Providers.OnReceive(func(kind string, _ lemma.Channel, _, _ json.RawMessage) bool { return kind == "http" })
	prv, err := h.Providers.Create(h.t.Context(), h.Workspace, providers.NewProvider{ID: lemma.NewID(), Name: "gateway", Kind: "http",
		Config:  fmt.Appendf(nil, `{"url": %q, "timeout_seconds": 1}`, server.URL),
		Secrets: fmt.Appendf(nil, `{"signing_secret": %[1]q, "webhook_secret": %[1]q}`, signing.Secret(g.key))})
	h.Must(err)
	h.Provider, h.carrier = prv.ID, g
	g.public = h.serve()
	g.hook = g.public + "/hooks/http/" + lemma.FormatID(lemma.PrefixProvider, prv.ID)
	g.publish(h.t)
	return g
}

// serve starts `lemma serve` and returns its URL when it answers.
func (h *env) serve() string {
	h.t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	h.Must(err)
	address := free.Addr().String()
	h.Must(free.Close())
	public := "http://" + address
	h.start("serve", "LEMMA_LISTEN="+address, "LEMMA_METRICS_LISTEN="+address, "LEMMA_PUBLIC_URL="+public)
	pgtest.Eventually(h.t, 20*time.Second, "lemma serve answers", func() bool {
		status, err := post(public+"/hooks/http/none", http.Header{}, nil)
		return err == nil && status == http.StatusNotFound
	})
	return public
}

// accept accepts a message whose whole body has arrived, also when its sender is gone.
func (g *webhookGateway) accept(w http.ResponseWriter, r *http.Request) {
	var m struct {
		Notification string `json:"notification_id"`
		Attempt      int    `json:"attempt"`
		To           string `json:"to"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &m) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	time.Sleep(g.add(m.Notification, m.To, m.Attempt))
	_, _ = io.WriteString(w, `{"id": "m"}`) // a sender that is gone needs no answer
}

// add remembers an acceptance and queues its events. It returns the delay of the answer.
func (g *webhookGateway) add(notification, to string, attempt int) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := acceptance{delivery{notification, to}, attempt, time.Now()}
	g.accepted = append(g.accepted, a)
	g.calls[notification]++
	if g.loses != nil && g.loses(a) {
		g.lost[notification] = g.lost[notification] || attempt == 1
	} else {
		g.queue = append(g.queue, event{Type: "delivered", Notification: notification, Attempt: attempt})
	}
	if g.more != nil {
		g.queue = append(g.queue, g.more(a)...)
	}
	for i := range g.queue {
		if g.queue[i].ID == "" {
			g.queue[i].ID, g.queue[i].OccurredAt = lemma.NewID().String(), a.at
		}
	}
	return g.delay
}

// publish sends the events until the test ends.
func (g *webhookGateway) publish(t *testing.T) {
	ended, stop := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-ended })
	go func() {
		defer close(ended)
		every := time.NewTicker(20 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-stop:
				return
			case <-every.C:
				g.publishDue(t)
			}
		}
	}()
}

// publishDue sends the oldest events that are due, in one request. Events that were not
// stored are sent again.
func (g *webhookGateway) publishDue(t *testing.T) {
	due := g.due(500)
	if len(due) == 0 {
		return
	}
	body, _ := json.Marshal(map[string]any{"events": due})
	header := http.Header{}
	signing.Set(header, [][]byte{g.key}, lemma.NewID().String(), time.Now(), body)
	status, err := post(g.hook, header, body)
	if err != nil || status != http.StatusOK {
		t.Logf("webhook: %d %v", status, err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = g.queue[len(due):]
}

func (g *webhookGateway) due(most int) []event {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for n < min(len(g.queue), most) && time.Since(g.queue[n].OccurredAt) >= g.lag {
		n++
	}
	return g.queue[:n:n]
}

func post(url string, header http.Header, body []byte) (status int, err error) {
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header = header
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// delivered is part of carrier.
func (g *webhookGateway) delivered() (all []delivery) {
	for _, a := range g.acceptances() {
		all = append(all, a.delivery)
	}
	return all
}

// requests is part of carrier.
func (g *webhookGateway) requests(notification string) (bodies, deferred int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls[notification], 0
}

func (g *webhookGateway) acceptances() []acceptance {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clip(g.accepted)
}

// received is how many messages were accepted.
func (g *webhookGateway) received() int { return len(g.acceptances()) }
