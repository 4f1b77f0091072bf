package demo

import (
	"strings"
	"testing"
	"time"

	"lemma/audience"
	"lemma/client"
	"lemma/server"
)

// pathOf is the path of a profile through the demo flow.
func pathOf(profile, status string, bought time.Duration, acted ...string) path {
	begun := time.Date(2027, 1, 2, 12, 0, 0, 0, time.UTC)
	w := path{enrollment: client.Enrollment{ProfileKey: profile, Status: status, CreatedAt: begun}}
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
		path  path
		stale bool // of an earlier run
		want  string
	}{
		"nudged, not having bought": {pathOf("1", "completed", 0, "welcome sent", "bought branched", "nudge sent"), false, ""},
		"not nudged, having bought": {pathOf("2", "completed", time.Second, "welcome sent", "bought branched"), false, ""},
		"no address": {
			pathOf("11", "completed", 0, "welcome skipped", "bought branched", "nudge skipped"), false, ""},
		"bought too late after an interruption": {
			pathOf("2", "completed", time.Minute, "welcome sent", "bought branched", "nudge sent"), true, ""},
		"nudged, having bought": {
			pathOf("2", "completed", time.Second, "welcome sent", "bought branched", "nudge sent"), false, "got 1 nudges"},
		"the same, seen by a later run": {
			pathOf("2", "completed", time.Second, "welcome sent", "bought branched", "nudge sent"), true, "got 1 nudges"},
		"not nudged, not having bought": {pathOf("1", "completed", 0, "welcome sent", "bought branched"), false, "got 0 nudges"},
		"welcomed twice": {
			pathOf("1", "completed", 0, "welcome sent", "welcome sent", "bought branched", "nudge sent"), false, "the nodes acted"},
		"nudged twice": {
			pathOf("1", "completed", 0, "welcome sent", "bought branched", "nudge sent", "nudge sent"), false, "the nodes acted"},
		"never branched": {pathOf("1", "completed", 0, "welcome sent", "nudge sent"), false, "the nodes acted"},
		"not ended":      {pathOf("1", "waiting", 0, "welcome sent"), false, "1 is waiting"},
	} {
		b := FlowCounts{}
		b.checkPath(c.path, !c.stale)
		if err := b.err(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDemoChecksSignupsAndMessages(t *testing.T) {
	t.Parallel()
	again, test := signup{profile: "3", source: "shop", twice: true}, signup{profile: "8", source: "test"}
	refused := []client.Refusal{{ProfileKey: "3", Reason: "already_enrolled"}, {ProfileKey: "8", Reason: "filtered"}}
	for want, check := range map[string]func(*FlowCounts){
		"": func(b *FlowCounts) {
			b.refusals = refused
			b.checkSignup(again, 1, true)
			b.checkSignup(test, 0, true)
		},
		"3 was enrolled 2 times": func(b *FlowCounts) { b.refusals = refused; b.checkSignup(again, 2, true) },
		`8 was refused as ""`:    func(b *FlowCounts) { b.checkSignup(test, 0, true) },
		"8 was enrolled 1 times": func(b *FlowCounts) { b.refusals = refused; b.checkSignup(test, 1, false) },
		"a message that was not sent: ntf_b": func(b *FlowCounts) {
			b.sum([]notification{{ID: "ntf_a", Status: "sent"}}, map[string]int{"ntf_a": 1, "ntf_b": 1})
		},
		"the mail catcher has 2, of these 1": func(b *FlowCounts) {
			node := "welcome"
			b.counts.Nodes = []client.NodeCount{{Node: node, Processed: map[string]int64{"sent": 1}}}
			sent := []notification{{ID: "ntf_a", Node: &node, Status: "sent"}}
			b.sum(sent, map[string]int{"ntf_a": 2})
			b.check(&flowDemo{}, sent)
		},
	} {
		b := FlowCounts{}
		check(&b)
		if err := b.err(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// The demo keeps the settings of data sources, beside what its shop needs.
func TestDemoKeepsSettingsOfSources(t *testing.T) {
	t.Parallel()
	c := onThisMachine(server.Config{Sources: audience.Options{AllowWriting: true, FetchTimeout: time.Second}}).Sources
	if !c.AllowWriting || c.FetchTimeout != time.Second || !c.AllowPrivate || !c.AllowUnix {
		t.Errorf("limits of sources: %+v", c)
	}
}
