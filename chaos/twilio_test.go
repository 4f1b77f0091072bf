package chaos

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"lemma"
	"lemma/message"
)

const (
	twilioAccount = "AC00000000000000000000000000000001"
	twilioService = "MG00000000000000000000000000000002"
	twilioToken   = "auth-token-0123456789"
)

// twilioServer is Twilio: it sends signed status callbacks to the URL of each message, and has
// a list of its messages.
type twilioServer struct {
	*reporter
	mu    sync.Mutex
	texts map[string]string      // by notification
	asked map[string][]time.Time // when its list was read, by number
}

// openTwilio makes Twilio and its provider. Campaigns are SMS from then on.
func (h *env) openTwilio() *twilioServer {
	h.t.Helper()
	public := h.serve()
	w := &twilioServer{reporter: newReporter("LEMMA_PUBLIC_URL=" + public), texts: map[string]string{}, asked: map[string][]time.Time{}}
	w.atOnce = 32
	h.openReporter(w.reporter, public, "twilio",
		fmt.Sprintf(`{"account_sid": %q, "messaging_service_sid": %q, "endpoint": %q, "timeout_seconds": 60}`, twilioAccount, twilioService,
			w.serveTLS(h.t, w.messages)),
		fmt.Sprintf(`{"auth_token": %q}`, twilioToken))
	h.Template = h.NewTemplate(message.Content{Channel: lemma.SMS, Text: "Hello {{ name }}, it is customer {{ id }}."})
	h.sms = true
	w.send = func(e event) bool {
		form := url.Values{"AccountSid": {twilioAccount}, "MessageSid": {sid(e.of)}, "MessageStatus": {e.Type}, "To": {e.of.recipient}}
		status, err := post(e.of.callback, http.Header{"Content-Type": {"application/x-www-form-urlencoded"},
			"X-Twilio-Signature": {twilioSignature(e.of.callback, form)}}, []byte(form.Encode()))
		return err == nil && status == http.StatusOK
	}
	w.publish(h.t)
	return w
}

// messages is the Messages resource: POST sends, GET is the list.
func (w *twilioServer) messages(out http.ResponseWriter, request *http.Request) {
	if request.Method == http.MethodGet {
		w.list(out, request.URL.Query().Get("To"))
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the worker is gone: no whole request
	}
	form, err := url.ParseQuery(string(body))
	callback, _ := url.Parse(form.Get("StatusCallback"))
	if err != nil || callback == nil {
		out.WriteHeader(http.StatusBadRequest)
		return
	}
	a := acceptance{delivery: delivery{callback.Query().Get("n"), form.Get("To")}, callback: form.Get("StatusCallback")}
	a.attempt, _ = strconv.Atoi(callback.Query().Get("a")) // 0 is no attempt: verify finds it
	w.mu.Lock()
	w.texts[a.notification] = form.Get("Body")
	w.mu.Unlock()
	w.accept(request, a)
	out.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(out, `{"sid": %q, "status": "queued"}`, sid(a)) // a worker that is gone needs no answer
}

// list answers the messages to a number, the newest first.
func (w *twilioServer) list(out io.Writer, to string) {
	type record struct {
		SID     string `json:"sid"`
		To      string `json:"to"`
		Service string `json:"messaging_service_sid"`
		Body    string `json:"body"`
		Created string `json:"date_created"`
	}
	all := []record{}
	accepted := w.acceptances()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[to] = append(w.asked[to], time.Now())
	for _, a := range slices.Backward(accepted) {
		if a.recipient == to {
			all = append(all, record{sid(a), to, twilioService, w.texts[a.notification], a.at.UTC().Format(time.RFC1123Z)})
		}
	}
	_ = json.NewEncoder(out).Encode(map[string]any{"messages": all, "next_page_uri": nil}) // the same
}

// sid is Twilio's id of a message.
func sid(a acceptance) string {
	id := lemma.Key("sid/1", a.notification, strconv.Itoa(a.attempt))
	return fmt.Sprintf("SM%x", id[:])
}

// twilioSignature is HMAC-SHA1 of the URL and the sorted parameters, of one value each.
func twilioSignature(called string, form url.Values) string {
	mac := hmac.New(sha1.New, []byte(twilioToken))
	_, _ = io.WriteString(mac, called)
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		_, _ = io.WriteString(mac, name+form.Get(name))
	}
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Half of the status callbacks are lost. Twilio is asked for the messages to a number
// before a second attempt, so that no profile gets two copies.
func TestKilledWorkersAskTwilio(t *testing.T) {
	t.Parallel()
	h := setup(t)
	w := h.openTwilio()
	random := h.random()
	w.delay = 20 * time.Millisecond
	w.loses = func(a acceptance) bool { return a.held != nil || random.IntN(2) == 0 } // at least that of a call that is killed
	id, sum := h.killedCampaign(w.reporter, nil)
	h.wantAllSentOnce(id, sum)

	found := h.Count(`select count(*) from provider_events where source = 'lookup' and kind = 'accepted'`)
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%d numbers were asked about, %d messages were found, %d of %d callbacks lost", len(w.asked), found, len(w.lost), w.received())
	if found == 0 {
		t.Error("no message was found in the list: nothing was tested")
	}
	for _, a := range w.acceptances() {
		before := func(at time.Time) bool { return at.Before(a.at) }
		if a.attempt == 2 && !slices.ContainsFunc(w.asked[a.recipient], before) {
			t.Errorf("a second attempt to %s without a question before it", a.recipient)
		}
	}
}
