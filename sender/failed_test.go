package sender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/notifications"
)

// A batch that fails has one line in the log, with the batch, the provider and the kind
// of the error. Its own job works it, or that of another workspace.
func TestAFailedBatchIsLoggedOnce(t *testing.T) {
	b := setup(t)
	refs := b.insert(2, 2, 2)
	for name, work := range map[string]func(*Sender){
		"its own job": func(s *Sender) {
			if _, err := s.Work(bg, refs[0]); err == nil {
				t.Error("the work did not fail")
			}
		},
		"the job of another workspace": func(s *Sender) {
			own := notifications.Ref{WorkspaceID: lemma.NewID()}
			for served := false; !served; {
				s.fairness.at, s.fairness.workspaces = time.Now(), []uuid.UUID{b.Workspace}
				served = s.serveAnother(bg, own)
			}
		},
	} {
		var out bytes.Buffer
		s := b.sender()
		s.log = slog.New(slog.NewJSONHandler(&out, nil))
		s.Hook = func(_ context.Context, at string, _ notifications.Ref) {
			switch at {
			case "claimed":
				b.Exec(`alter table contents rename to gone`)
			case "committing":
				b.Exec(`alter table gone rename to contents`)
			}
		}
		work(s)
		var line struct {
			Level, Msg, Kind, Error string
			Batch                   string `json:"batch_id"`
			Origin                  string `json:"origin_id"`
			Provider                string `json:"provider_id"`
		}
		if n := strings.Count(out.String(), "\n"); n != 1 {
			t.Fatalf("%s: %d lines\n%s", name, n, out.String())
		}
		b.Must(json.Unmarshal(out.Bytes(), &line))
		if line.Level != "ERROR" || line.Kind != "database" || line.Batch != refs[0].BatchID.String() ||
			line.Origin != b.origin.String() || line.Provider != b.provider.String() || strings.Count(line.Error, "SQLSTATE") != 1 {
			t.Errorf("%s: %+v", name, line)
		}
		b.makeDue()
	}
}

// The end of the process is no failure of a batch.
func TestTheEndOfTheProcessIsNoFailure(t *testing.T) {
	b := setup(t)
	var out bytes.Buffer
	s := b.sender()
	s.log = slog.New(slog.NewTextHandler(&out, nil))
	s.Drain()
	s.logFailed(notifications.Ref{}, uuid.Nil, fmt.Errorf("read: %w", context.Canceled))
	if out.Len() > 0 {
		t.Error(out.String())
	}
}

// A cause that makes a step fail and giving the batch back as well is shown once.
func TestOneCauseIsShownOnce(t *testing.T) {
	t.Parallel()
	gone, full := errors.New("the connection was refused"), errors.New("no space left")
	for _, c := range []struct {
		err, back error
		want      string
	}{
		{fmt.Errorf("read dates: %w", gone), fmt.Errorf("commit: %w", errors.New(gone.Error())), "read dates: the connection was refused"},
		{fmt.Errorf("read dates: %w", gone), fmt.Errorf("commit: %w", full), "read dates: the connection was refused\ncommit: no space left"},
		{nil, fmt.Errorf("commit: %w", full), "commit: no space left"},
		{gone, nil, "the connection was refused"},
	} {
		if got := alongside(c.err, c.back); got.Error() != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if alongside(nil, nil) != nil {
		t.Error("an error of nothing")
	}
}
