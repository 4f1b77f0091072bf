package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lemma/dev/demo"
	"lemma/pgtest"
)

// The readers of the A/B demo decide its test, and Lemma counts what they do. A second
// run sends nothing.
func TestDevABTest(t *testing.T) {
	t.Parallel()
	pgtest.Empty(t)                        // skips without a Postgres
	home, err := os.MkdirTemp("", "devab") //nolint:usetesting // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	for i := range 2 {
		out := mustRun(t, nil, "dev", "--demo=abtest", "--once", "--people=400", "--home="+filepath.Join(home, "lemma"),
			"--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--smtp=127.0.0.1:0", "--catcher=127.0.0.1:0")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var n demo.ABCounts
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &n); err != nil {
			t.Fatal(err)
		}
		read := n.Opened > 0 && n.Opens > 0 && n.Clicked > 0 && n.Clicks > 0 // the command compares the numbers
		if n.Status != "completed" || n.Winner == nil || !strings.Contains(out, "winner: "+*n.Winner) || read != (i == 0) {
			t.Errorf("run %d prints %s", i, out)
		}
	}
}

// A second run of `lemma dev --once` has the same counts: no message is sent
// again.
func TestDevTwice(t *testing.T) {
	t.Parallel()
	pgtest.Empty(t)                      // skips without a Postgres
	home, err := os.MkdirTemp("", "dev") //nolint:usetesting // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	var counts [2]string
	for i := range counts {
		out := mustRun(t, nil, "dev", "--once", "--people=60", "--home="+filepath.Join(home, "lemma"),
			"--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--smtp=127.0.0.1:0", "--catcher=127.0.0.1:0")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		counts[i] = lines[len(lines)-1]
		if again := strings.Contains(out, "no profile is enrolled"); again != (i == 1) {
			t.Errorf("run %d prints %s", i, out)
		}
	}
	err = filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&(fs.ModeSocket|fs.ModeDir) != 0 {
			return err
		}
		if file, err := entry.Info(); err == nil && file.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, file.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if counts[0] != counts[1] {
		t.Errorf("the counts differ:\n%s\n%s", counts[0], counts[1])
	}
	var b demo.Counts
	if err := json.Unmarshal([]byte(counts[0]), &b); err != nil {
		t.Fatal(err)
	}
	f := b.Flow
	if f.Enrolled != 8 || f.Completed != 8 || f.Goals != 2 || f.Caught != 10 || f.Duplicates != 0 || f.Messages["nudge"] != 4 ||
		f.Messages["welcome"] != 6 ||
		f.Refused["already_enrolled"] != 1 || f.Refused["filtered"] != 2 || f.Refused["condition_error"] != 0 ||
		f.Nodes["bought"]["branched"] != 8 {
		t.Errorf("the flow's counts are %+v", f)
	}
}
