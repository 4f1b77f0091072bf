package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lemma/client"
	"lemma/pgtest"
)

// `lemma dev --once` walks through campaign and flow, and the second run has
// the same books: nobody is sent anything again.
func TestDevTwice(t *testing.T) {
	t.Parallel()
	pgtest.Empty(t)                      // is there a Postgres at all?
	home, err := os.MkdirTemp("", "dev") // the path of a socket may not be long, and t.TempDir's is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	var books [2]string
	for i := range books {
		out := mustRun(t, nil, "dev", "--once", "--people=60", "--home="+filepath.Join(home, "lemma"), "--listen=127.0.0.1:0", "--smtp=127.0.0.1:0", "--catcher=127.0.0.1:0")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		books[i] = lines[len(lines)-1]
		if again := strings.Contains(out, "nobody is enrolled"); again != (i == 1) {
			t.Errorf("run %d prints %s", i, out)
		}
	}
	if books[0] != books[1] {
		t.Errorf("the books differ:\n%s\n%s", books[0], books[1])
	}
	var b demoBooks
	if err := json.Unmarshal([]byte(books[0]), &b); err != nil {
		t.Fatal(err)
	}
	f := b.Flow
	if f.Enrolled != 8 || f.Completed != 8 || f.Goals != 2 || f.Mails != 10 || f.Duplicates != 0 || f.Letters["nudge"] != 4 || f.Letters["welcome"] != 6 ||
		f.Refused["already_enrolled"] != 1 || f.Refused["filtered"] != 2 || f.Refused["condition_error"] != 0 || f.Nodes["bought"]["branched"] != 8 {
		t.Errorf("the flow's books are %+v", f)
	}
}

// fared is somebody's way through the demo flow.
func fared(profile, status string, bought time.Duration, acted ...string) walked {
	begun := time.Date(2027, 1, 2, 12, 0, 0, 0, time.UTC)
	w := walked{enrollment: client.Enrollment{ProfileKey: profile, Status: status, EnrolledAt: begun}}
	if bought != 0 {
		w.bought = begun.Add(bought)
	}
	for _, act := range acted {
		node, event, _ := strings.Cut(act, " ")
		w.steps = append(w.steps, client.EnrollmentStep{Node: &node, Event: event, At: begun.Add(2 * time.Second)})
	}
	return w
}

func TestDemoFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		walk  walked
		stale bool // of an earlier run
		want  string
	}{
		"nudged, not having bought":             {fared("1", "completed", 0, "welcome sent", "bought branched", "nudge sent"), false, ""},
		"not nudged, having bought":             {fared("2", "completed", time.Second, "welcome sent", "bought branched"), false, ""},
		"no address":                            {fared("11", "completed", 0, "welcome skipped", "bought branched", "nudge skipped"), false, ""},
		"bought too late after an interruption": {fared("2", "completed", time.Minute, "welcome sent", "bought branched", "nudge sent"), true, ""},
		"nudged, having bought":                 {fared("2", "completed", time.Second, "welcome sent", "bought branched", "nudge sent"), false, "was nudged 1 times"},
		"the same, seen by a later run":         {fared("2", "completed", time.Second, "welcome sent", "bought branched", "nudge sent"), true, "was nudged 1 times"},
		"not nudged, not having bought":         {fared("1", "completed", 0, "welcome sent", "bought branched"), false, "was nudged 0 times"},
		"welcomed twice":                        {fared("1", "completed", 0, "welcome sent", "welcome sent", "bought branched", "nudge sent"), false, "the nodes acted"},
		"nudged twice":                          {fared("1", "completed", 0, "welcome sent", "bought branched", "nudge sent", "nudge sent"), false, "the nodes acted"},
		"never looked at":                       {fared("1", "completed", 0, "welcome sent", "nudge sent"), false, "the nodes acted"},
		"on the way":                            {fared("1", "waiting", 0, "welcome sent"), false, "1 is waiting"},
	} {
		b := journeyBooks{}
		b.judgeWalk(c.walk, !c.stale)
		if err := b.err(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDemoHoldsSignupsAndMails(t *testing.T) {
	t.Parallel()
	again, test := signup{profile: "3", source: "shop", again: true}, signup{profile: "8", source: "test"}
	refused := []client.Refusal{{ProfileKey: "3", Reason: "already_enrolled"}, {ProfileKey: "8", Reason: "filtered"}}
	for want, judge := range map[string]func(*journeyBooks){
		"": func(b *journeyBooks) {
			b.refusals = refused
			b.judgeSignup(again, 1, true)
			b.judgeSignup(test, 0, true)
		},
		"3 was enrolled 2 times": func(b *journeyBooks) { b.refusals = refused; b.judgeSignup(again, 2, true) },
		`8 was refused as ""`:    func(b *journeyBooks) { b.judgeSignup(test, 0, true) },
		"8 was enrolled 1 times": func(b *journeyBooks) { b.refusals = refused; b.judgeSignup(test, 1, false) },
		"a mail that was not sent: ntf_b": func(b *journeyBooks) {
			b.sum([]letter{{ID: "ntf_a", Status: "sent"}}, map[string]int{"ntf_a": 1, "ntf_b": 1})
		},
		"the mail catcher has 2, of these 1": func(b *journeyBooks) {
			node := "welcome"
			b.counts.Nodes = []client.NodeCount{{Node: node, Passed: map[string]int64{"sent": 1}}}
			letters := []letter{{ID: "ntf_a", Node: &node, Status: "sent"}}
			b.sum(letters, map[string]int{"ntf_a": 2})
			b.judge(&journey{fresh: 0}, letters)
		},
	} {
		b := journeyBooks{}
		judge(&b)
		if err := b.err(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
