package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lemma/client"
)

// The results are drawn until the test has ended, and only when they change.
func TestResultsAreFollowed(t *testing.T) {
	t.Parallel()
	name, sentence, calls := "B", "B wins.", 0
	why := "9 complaints"
	count, rate := int64(60), 0.06
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		point := client.VariantPoint{Recipients: 1000, Sent: 990, Delivered: 980, Opens: 411, Complaints: 7, Excluded: 13, Converted: &count,
			Rate: &rate, Interval: &client.RateInterval{Low: 0.05, High: 0.08}}
		r := client.IterationResults{Status: "running", Series: []client.VariantSeries{
			{Variant: &name, StoppedReason: &why, Points: []client.VariantPoint{point}}, {}}}
		if calls > 2 {
			r.Status, r.Winner, r.Sentence = "completed", &name, &sentence
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r)
	}))
	defer s.Close()
	var out bytes.Buffer
	command := campaignsResultsCommand{Iteration: "itr_1", Follow: true, Every: time.Millisecond}
	if err := Run(context.Background(), command, Config{URL: s.URL, APIKey: "key"}, &out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, part := range []string{"running, cut-off none", "(holdout)", "980", "411", "7", "13", "6.00 %", "●",
		"completed", "winner: B", "B wins.", "B is stopped: 9 complaints"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if n := strings.Count(text, "running"); n != 1 || calls != 3 {
		t.Errorf("%d calls, and the first results %d times", calls, n)
	}
}
