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

// A script sees by the exit code whether there is a file. One that exists is seen before an
// export is made.
func TestAnExportThatHasNoFile(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{"completed": "", "cancelled": "the export is cancelled", "failed": "the export failed: full"} {
		calls := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			x, detail, now := client.Export{ID: "exp_1", Status: "running"}, "full", time.Now()
			if calls++; calls > 2 {
				x.Status, x.StatusDetail, x.FinishedAt = status, &detail, &now
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(x)
		}))
		defer s.Close()
		run := func(c exportsCreateCommand) error {
			c.Type, c.Every = "notifications", time.Millisecond
			return Run(context.Background(), c, Config{URL: s.URL, APIKey: "key"}, new(bytes.Buffer))
		}
		if err := run(exportsCreateCommand{Follow: true}); err == nil && want != "" || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", status, err)
		}
		before := calls
		err := run(exportsCreateCommand{OutputFile: t.TempDir()})
		if err == nil || !strings.HasSuffix(err.Error(), " exists") || calls != before {
			t.Errorf("%v, %d calls", err, calls-before)
		}
	}
}
