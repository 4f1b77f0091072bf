package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"lemma/client"
	"lemma/cmd/lemma/remote"
)

// FlowCounts are the results of the demo flow. They are part of the last line of
// `lemma dev --once`, and the same in every run.
type FlowCounts struct {
	Enrolled   int64                       `json:"enrolled"`
	Completed  int64                       `json:"completed"`
	Goals      int64                       `json:"goals"`    // profiles that bought in time
	Messages   map[string]int64            `json:"messages"` // sent, by node
	Skipped    map[string]int64            `json:"skipped"`
	Refused    map[string]int64            `json:"refused"`
	Nodes      map[string]map[string]int64 `json:"nodes"`  // processed, by result
	Caught     int64                       `json:"caught"` // messages in the mail catcher
	Duplicates int64                       `json:"duplicates"`

	counts   client.FlowCounts
	refusals []client.Refusal
	paths    []path
	faults   []error
}

// path is what happened to one profile.
type path struct {
	enrollment client.Enrollment
	steps      []client.EnrollmentStep
	messages   map[string]notification // by node
	bought     time.Time
}

// results reads what happened, and checks it.
func (d *flowDemo) results(ctx context.Context) (b FlowCounts, err error) {
	if b.counts, err = d.api.CountFlow(ctx, d.flow.ID, 0); err != nil {
		return b, err
	}
	if b.refusals, err = client.Collect(d.api.ListRefusals(ctx, d.flow.ID, client.RefusalFilter{}), 0); err != nil {
		return b, err
	}
	sent, err := d.notifications(ctx)
	if err != nil {
		return b, err
	}
	for e, err := range d.api.ListEnrollments(ctx, client.EnrollmentFilter{FlowID: d.flow.ID}) {
		if err != nil {
			return b, err
		}
		if !d.isDemo(e.ProfileKey) || e.TriggerType != "event" {
			continue
		}
		h, err := d.api.GetEnrollmentHistory(ctx, e.ID)
		if err != nil {
			return b, err
		}
		b.paths = append([]path{d.path(h, sent)}, b.paths...) // the API lists the newest first
	}
	b.sum(sent, d.caught(sent))
	b.check(d, sent)
	return b, nil
}

func (d *flowDemo) path(h client.EnrollmentHistory, sent []notification) path {
	w := path{enrollment: h.Enrollment, steps: h.Steps, messages: map[string]notification{}, bought: d.bought[h.Enrollment.ProfileKey]}
	for _, s := range h.Steps {
		for _, l := range sent {
			if s.Notification != nil && s.Notification.ID == l.ID {
				w.messages[text(s.Node, "")] = l
			}
		}
	}
	return w
}

func (b *FlowCounts) sum(sent []notification, caught map[string]int) {
	b.Enrolled, b.Completed, b.Goals = b.counts.Enrolled, b.counts.Completed, b.counts.Goals
	b.Refused, b.Messages, b.Skipped, b.Nodes = b.counts.RefusalsBy, map[string]int64{}, map[string]int64{}, map[string]map[string]int64{}
	for _, n := range b.counts.Nodes {
		b.Nodes[remote.NodeName(n.Node)] = n.Processed
	}
	written := map[string]bool{}
	for _, l := range sent {
		if l.Status == "sent" {
			written[l.ID] = true
			b.Messages[text(l.Node, "")]++
		} else {
			b.Skipped[text(l.Reason, l.Status)]++
		}
	}
	for id, n := range caught {
		b.Caught += int64(n)
		b.Duplicates += int64(n - 1)
		if !written[id] {
			b.wrong("the mail catcher has a message that was not sent: %s", id)
		}
	}
}

func (b *FlowCounts) wrong(format string, args ...any) {
	b.faults = append(b.faults, fmt.Errorf("the demo flow: "+format, args...))
}

// check compares what happened with what should have. In a flow of an earlier run
// it checks only what other uses of the demo cannot have changed.
func (b *FlowCounts) check(d *flowDemo, all []notification) {
	fresh := d.enrolled > 0
	seen := map[string]int{}
	for _, w := range b.paths {
		b.checkPath(w, fresh)
		seen[w.enrollment.ProfileKey]++
	}
	for _, s := range d.present() {
		b.checkSignup(s, seen[s.profile], fresh)
	}
	sent := b.Messages["welcome"] + b.Messages["nudge"]
	if b.Duplicates > 0 || b.Caught > sent || b.Caught != sent && fresh {
		b.wrong("%d messages were sent, the mail catcher has %d, of these %d twice", sent, b.Caught, b.Duplicates)
	}
	if acted := b.acted("welcome") + b.acted("nudge"); acted != len(all) {
		b.wrong("%d notifications exist, and the nodes count %d", len(all), acted)
	}
	if fresh && (int(b.Enrolled) != len(b.paths) || b.Completed != b.Enrolled) {
		b.wrong("%d are counted as enrolled and %d as completed, %d exist", b.Enrolled, b.Completed, len(b.paths))
	}
}

func (b *FlowCounts) acted(node string) int {
	return int(b.Nodes[node]["sent"] + b.Nodes[node]["skipped"])
}

// checkSignup: a signup in the shop enrolls once, and every other one is refused,
// with its reason.
func (b *FlowCounts) checkSignup(s signup, enrolled int, fresh bool) {
	times, reason := 1, ""
	switch {
	case s.source != "shop":
		times, reason = 0, "filtered"
	case s.twice:
		reason = "already_enrolled"
	}
	if enrolled != times {
		b.wrong("%s was enrolled %d times", s.profile, enrolled)
	}
	if got := refusedAs(b.refusals, s.profile); got != reason && (fresh || !strings.Contains(got, reason)) {
		b.wrong("%s was refused as %q instead of %q", s.profile, got, reason)
	}
}

// refusedAs returns the reasons for which triggers of a profile were refused.
func refusedAs(all []client.Refusal, profile string) string {
	var reasons []string
	for _, r := range all {
		if r.ProfileKey == profile {
			reasons = append(reasons, r.Reason)
		}
	}
	return strings.Join(reasons, " ")
}

// checkPath: each enrollment completes, each node acts once, and a profile gets a
// nudge unless it has bought. An order counts if it was there before the branch
// was evaluated; in an interrupted run it may have come later.
func (b *FlowCounts) checkPath(w path, fresh bool) {
	profile, times := w.enrollment.ProfileKey, map[string]int{}
	var branchedAt time.Time
	for _, s := range w.steps {
		switch s.Event {
		case "sent", "skipped":
			times[text(s.Node, "")]++
		case "branched":
			times["bought"]++
			branchedAt = s.At
		}
	}
	intime := !w.bought.IsZero() && w.bought.After(w.enrollment.CreatedAt) && w.bought.Before(branchedAt)
	nudges := 1
	if intime {
		nudges = 0
	}
	switch {
	case w.enrollment.Status != "completed":
		b.wrong("%s is %s", profile, w.enrollment.Status)
	case times["welcome"] != 1 || times["bought"] != 1 || times["nudge"] > 1:
		b.wrong("%s: the nodes acted %v times", profile, times)
	case times["nudge"] > nudges || times["nudge"] != nudges && fresh:
		b.wrong("%s has bought in time: %v, and got %d nudges", profile, intime, times["nudge"])
	}
}

// err returns all faults that were found.
func (b FlowCounts) err() error { return errors.Join(b.faults...) }

// print prints what happened to each profile, and the counts.
func (b FlowCounts) print(out io.Writer) error {
	fmt.Fprintln(out)
	if err := remote.Table(out, "CUSTOMER|ADDRESS|WELCOME|BOUGHT|NUDGE|END", b.paths, func(w path) []string {
		return []string{w.enrollment.ProfileKey, w.address(), w.sent("welcome"), clock(w.bought), w.sent("nudge"),
			text(w.enrollment.Node, "") + " " + clock(w.ended())}
	}); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, r := range b.refusals {
		fmt.Fprintf(out, "customer %s signed up at %s and was refused: %s\n", r.ProfileKey, clock(r.CreatedAt), r.Reason)
	}
	fmt.Fprintln(out)
	return remote.ShowNodes(out, b.counts.Nodes)
}

func (w path) address() string {
	for _, l := range w.messages {
		if l.Address != nil {
			return *l.Address
		}
	}
	return "none"
}

// sent is when a message was sent, or why it was not.
func (w path) sent(node string) string {
	l, ok := w.messages[node]
	switch {
	case !ok:
		return "-"
	case l.Status == "sent" && l.EndedAt != nil:
		return clock(*l.EndedAt)
	}
	return text(l.Reason, l.Status)
}

func (w path) ended() time.Time {
	if w.enrollment.EndedAt == nil {
		return time.Time{}
	}
	return *w.enrollment.EndedAt
}

// text is the text of a value, or another one if there is no value.
func text(value *string, instead string) string {
	if value == nil {
		return instead
	}
	return *value
}

func clock(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.Local().Format("15:04:05.0")
}
