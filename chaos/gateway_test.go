package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"lemma"
	"lemma/providers"
	"lemma/signing"
)

// openGateway makes a customer's HTTP service, the provider for it and the `lemma serve`
// process that receives its events.
func (h *env) openGateway() *reporter {
	h.t.Helper()
	key := []byte("0123456789abcdef0123456789abcdef")
	public := h.serve()
	r := newReporter("LEMMA_PUBLIC_URL=" + public)
	r.atOnce = 32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var m struct {
			Notification string `json:"notification_id"`
			Attempt      int    `json:"attempt"`
			To           string `json:"to"`
		}
		body, err := io.ReadAll(request.Body)
		if err != nil || json.Unmarshal(body, &m) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.accept(request, acceptance{delivery: delivery{m.Notification, m.To}, attempt: m.Attempt})
		_, _ = io.WriteString(w, `{"id": "m"}`) // a sender that is gone needs no answer
	}))
	h.t.Cleanup(server.Close)
	hook := h.openReporter(r, public, "http", fmt.Sprintf(`{"url": %q, "timeout_seconds": 60}`, server.URL),
		fmt.Sprintf(`{"signing_secret": %[1]q, "webhook_secret": %[1]q}`, signing.Secret(key)))
	r.send = func(e event) bool {
		body, _ := json.Marshal(map[string]any{"events": []event{e}})
		header := http.Header{"Content-Type": {"application/json"}}
		signing.Set(header, [][]byte{key}, lemma.NewID().String(), time.Now(), body)
		status, err := post(hook, header, body)
		return err == nil && status == http.StatusOK
	}
	r.publish(h.t)
	return r
}

// openReporter makes the provider of a reporter, and returns the URL of its webhooks.
func (h *env) openReporter(r *reporter, public, kind, config, secrets string) (hook string) {
	h.t.Helper()
	h.Providers.OnReceive(func(given string, _ lemma.Channel, _, _ json.RawMessage) bool { return given == kind })
	prv, err := h.Providers.Create(h.t.Context(), h.Workspace, providers.NewProvider{ID: lemma.NewID(), Name: kind, Kind: kind,
		Config: json.RawMessage(config), Secrets: json.RawMessage(secrets)})
	h.Must(err)
	h.Provider, h.carrier = prv.ID, r
	return public + "/hooks/" + kind + "/" + lemma.FormatID(lemma.PrefixProvider, prv.ID)
}

// serve starts `lemma serve` and returns its URL when it answers.
func (h *env) serve() string {
	h.t.Helper()
	address := freeAddress(h.t)
	public := "http://" + address
	h.start("serve", "LEMMA_LISTEN="+address, "LEMMA_METRICS_LISTEN="+address, "LEMMA_PUBLIC_URL="+public)
	h.eventually("lemma serve answers", func() bool {
		status, err := post(public+"/hooks/http/none", http.Header{}, nil)
		return err == nil && status == http.StatusNotFound
	})
	return public
}
