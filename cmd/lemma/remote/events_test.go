package remote

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lemma/client"
)

// Events that a request leaves out because it is overloaded are sent again.
func TestBulkSendsOverloadedEventsAgain(t *testing.T) {
	t.Parallel()
	var sent []int
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Events []client.NewEvent }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		sent = append(sent, len(body.Events))
		answer := client.RecordedEvents{Counts: client.RecordedCounts{Accepted: 1, Overloaded: len(body.Events) - 1}}
		for i := range body.Events {
			answer.Results = append(answer.Results,
				client.RecordedItem{Index: i, Status: map[bool]string{true: "accepted", false: "overloaded"}[i == 0]})
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer api.Close()
	c, err := client.New(api.URL, "key")
	if err != nil {
		t.Fatal(err)
	}
	work := &bulk{api: c}
	if err := work.all(t.Context(), strings.NewReader(strings.Repeat(`{"profile_key":"c1","event":"x"}`+"\n", 3))); err != nil {
		t.Fatal(err)
	}
	if work.sum.Accepted != 3 || work.sum.Invalid != 0 || len(sent) != 3 || sent[2] != 1 {
		t.Errorf("%+v after requests of %v events", work.sum, sent)
	}
}
