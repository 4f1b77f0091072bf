package server

import (
	"bytes"
	"encoding/json"
	"log"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The messages that net/http logs because of a peer are bounded in length and number.
func TestErrorsOfHTTPAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := newErrorLog(slog.New(slog.NewJSONHandler(&out, nil)), "api")
		type line struct {
			Msg, Level, Error, Listener string
			Dropped                     int
		}
		lines := func() (all []line) {
			for d := json.NewDecoder(&out); d.More(); {
				var l line
				must(t, d.Decode(&l))
				all = append(all, l)
			}
			return all
		}
		for range 1000 {
			log.Printf("http: bad \xff\nlevel=ERROR %s", strings.Repeat("x", 100<<10))
		}
		got := lines()
		if len(got) != maxHTTPErrors {
			t.Fatalf("%d lines", len(got))
		}
		for _, l := range got {
			if l.Msg != "net/http reports an error" || l.Level != "WARN" || l.Listener != "api" || l.Dropped != 0 || len(l.Error) > maxHTTPError ||
				!strings.HasPrefix(l.Error, "http: bad ?\nlevel=ERROR x") {
				t.Errorf("%+v", l)
			}
		}
		time.Sleep(httpErrorsPer)
		log.Print("http: later")
		if got = lines(); len(got) != 1 || got[0].Error != "http: later" || got[0].Dropped != 990 {
			t.Errorf("%+v", got)
		}
	})
}

// What libraries log by package log is counted, and its text is left out: a server may have sent
// a secret back. The test is not parallel, since there is one such log.
func TestTheLogOfLibraries(t *testing.T) { //nolint:paralleltest
	before, flags := slog.Default(), log.Flags()
	defer func() {
		slog.SetDefault(before)
		log.SetOutput(os.Stderr)
		log.SetFlags(flags)
	}()
	var out bytes.Buffer
	SetDefaultLog(slog.New(slog.NewJSONHandler(&out, nil)))
	for range 1000 {
		log.Printf("Unsolicited response received on idle HTTP channel starting with %q", "a canary")
	}
	slog.Info("of a package")
	if n := strings.Count(out.String(), "\n"); n != maxHTTPErrors+1 || strings.Contains(out.String(), "canary") ||
		!strings.Contains(out.String(), "of a package") {
		t.Errorf("%d lines: %s", n, out.String())
	}
}
