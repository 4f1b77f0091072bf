package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"lemma/client"
)

// journeyBooks are what came of the demo flow; they are in the last line of
// `lemma dev --once`, and the same in every run.
type journeyBooks struct {
	Enrolled   int64                       `json:"enrolled"`
	Completed  int64                       `json:"completed"`
	Goals      int64                       `json:"goals"` // who bought in time
	Letters    map[string]int64            `json:"letters"`
	Skipped    map[string]int64            `json:"skipped"`
	Refused    map[string]int64            `json:"refused"`
	Nodes      map[string]map[string]int64 `json:"nodes"` // passed, by what happened
	Mails      int64                       `json:"mails"` // the catcher's, of this flow
	Duplicates int64                       `json:"duplicates"`

	counts   client.FlowCounts
	refusals []client.Refusal
	walks    []walked
	faults   []error
}

// walked is how one person fared.
type walked struct {
	enrollment client.Enrollment
	steps      []client.EnrollmentStep
	letters    map[string]letter // by node
	bought     time.Time
}

// books reads what happened, and looks whether it is what should have.
func (j *journey) books(ctx context.Context) (b journeyBooks, err error) {
	if b.counts, err = j.api.CountFlow(ctx, j.flow.ID, 0); err != nil {
		return b, err
	}
	if b.refusals, err = client.Collect(j.api.ListRefusals(ctx, j.flow.ID, client.RefusalFilter{}), 0); err != nil {
		return b, err
	}
	letters, err := j.letters(ctx)
	if err != nil {
		return b, err
	}
	for e, err := range j.api.ListEnrollments(ctx, client.EnrollmentFilter{FlowID: j.flow.ID}) {
		if err != nil {
			return b, err
		}
		if !j.mine(e.ProfileKey) || e.Source != "event" {
			continue
		}
		h, err := j.api.GetEnrollmentHistory(ctx, e.ID)
		if err != nil {
			return b, err
		}
		b.walks = append([]walked{j.walked(h, letters)}, b.walks...) // who came first is first
	}
	b.sum(letters, j.caught(letters))
	b.judge(j, letters)
	return b, nil
}

func (j *journey) walked(h client.EnrollmentHistory, letters []letter) walked {
	w := walked{enrollment: h.Enrollment, steps: h.Steps, letters: map[string]letter{}, bought: j.bought[h.Enrollment.ProfileKey]}
	for _, s := range h.Steps {
		for _, l := range letters {
			if s.NotificationID != nil && *s.NotificationID == l.ID {
				w.letters[or(s.Node, "")] = l
			}
		}
	}
	return w
}

func (b *journeyBooks) sum(letters []letter, copies map[string]int) {
	b.Enrolled, b.Completed, b.Goals = b.counts.Enrolled, b.counts.Completed, b.counts.Goals
	b.Refused, b.Letters, b.Skipped, b.Nodes = b.counts.Refusals, map[string]int64{}, map[string]int64{}, map[string]map[string]int64{}
	for _, n := range b.counts.Nodes {
		b.Nodes[nodeName(n.Node)] = n.Passed
	}
	written := map[string]bool{}
	for _, l := range letters {
		if l.Status == "sent" {
			written[l.ID] = true
			b.Letters[or(l.Node, "")]++
		} else {
			b.Skipped[or(l.Reason, l.Status)]++
		}
	}
	for id, n := range copies {
		b.Mails += int64(n)
		b.Duplicates += int64(n - 1)
		if !written[id] {
			b.wrong("the mail catcher has a mail that was not sent: %s", id)
		}
	}
}

func (b *journeyBooks) wrong(format string, args ...any) {
	b.faults = append(b.faults, fmt.Errorf("the demo flow: "+format, args...))
}

// judge holds what happened against what was to happen. Of a flow that has run
// before only so much is asked as nobody's playing with it can have changed.
func (b *journeyBooks) judge(j *journey, letters []letter) {
	fresh := j.fresh > 0
	seen := map[string]int{}
	for _, w := range b.walks {
		b.judgeWalk(w, fresh)
		seen[w.enrollment.ProfileKey]++
	}
	for _, s := range j.present() {
		b.judgeSignup(s, seen[s.profile], fresh)
	}
	sent := b.Letters["welcome"] + b.Letters["nudge"]
	if b.Duplicates > 0 || b.Mails > sent || b.Mails != sent && fresh {
		b.wrong("%d letters were sent, the mail catcher has %d, of these %d twice", sent, b.Mails, b.Duplicates)
	}
	if acted := b.acted("welcome") + b.acted("nudge"); acted != len(letters) {
		b.wrong("%d letters are written, and the nodes count %d", len(letters), acted)
	}
	if fresh && (int(b.Enrolled) != len(b.walks) || b.Completed != b.Enrolled) {
		b.wrong("%d are counted as enrolled and %d as completed, there are %d", b.Enrolled, b.Completed, len(b.walks))
	}
}

func (b *journeyBooks) acted(node string) int {
	return int(b.Nodes[node]["sent"] + b.Nodes[node]["skipped"])
}

// judgeSignup: who signs up at the shop is enrolled once, and every other
// signup is refused, with its reason.
func (b *journeyBooks) judgeSignup(s signup, enrolled int, fresh bool) {
	times, reason := 1, ""
	switch {
	case s.source != "shop":
		times, reason = 0, "filtered"
	case s.again:
		reason = "already_enrolled"
	}
	if enrolled != times {
		b.wrong("%s was enrolled %d times", s.profile, enrolled)
	}
	if got := refusedAs(b.refusals, s.profile); got != reason && (fresh || !strings.Contains(got, reason)) {
		b.wrong("%s was refused as %q, which should be %q", s.profile, got, reason)
	}
}

// refusedAs is the reason for which somebody's triggers were refused; of
// several, all.
func refusedAs(all []client.Refusal, profile string) string {
	var reasons []string
	for _, r := range all {
		if r.ProfileKey == profile {
			reasons = append(reasons, r.Reason)
		}
	}
	return strings.Join(reasons, " ")
}

// judgeWalk: everybody comes to the end, each node acts once, and a nudge is
// for whoever has not bought. An order counts when it was there before the
// branch looked; that of a run that was interrupted may have come too late.
func (b *journeyBooks) judgeWalk(w walked, fresh bool) {
	who, times := w.enrollment.ProfileKey, map[string]int{}
	var looked time.Time
	for _, s := range w.steps {
		switch s.Event {
		case "sent", "skipped":
			times[or(s.Node, "")]++
		case "branched":
			times["bought"]++
			looked = s.At
		}
	}
	intime := !w.bought.IsZero() && w.bought.After(w.enrollment.EnrolledAt) && w.bought.Before(looked)
	nudges := 1
	if intime {
		nudges = 0
	}
	switch {
	case w.enrollment.Status != "completed":
		b.wrong("%s is %s", who, w.enrollment.Status)
	case times["welcome"] != 1 || times["bought"] != 1 || times["nudge"] > 1:
		b.wrong("%s: the nodes acted %v times", who, times)
	case times["nudge"] > nudges || times["nudge"] != nudges && fresh:
		b.wrong("%s has bought in time: %v, and was nudged %d times", who, intime, times["nudge"])
	}
}

// err is what is wrong with the books; nil when everything is as it should be.
func (b journeyBooks) err() error { return errors.Join(b.faults...) }

// print tells who heard what and when.
func (b journeyBooks) print(out io.Writer) error {
	fmt.Fprintln(out)
	if err := table(out, "CUSTOMER|ADDRESS|WELCOME|BOUGHT|NUDGE|END", b.walks, func(w walked) []string {
		return []string{w.enrollment.ProfileKey, w.address(), w.heard("welcome"), clock(w.bought), w.heard("nudge"),
			or(w.enrollment.Node, "") + " " + clock(w.ended())}
	}); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, r := range b.refusals {
		fmt.Fprintf(out, "customer %s signed up at %s and was refused: %s\n", r.ProfileKey, clock(r.At), r.Reason)
	}
	fmt.Fprintln(out)
	return showNodes(out, b.counts.Nodes)
}

func (w walked) address() string {
	for _, l := range w.letters {
		if l.Address != nil {
			return *l.Address
		}
	}
	return "none"
}

// heard is when a letter was sent, or why it was not.
func (w walked) heard(node string) string {
	l, ok := w.letters[node]
	switch {
	case !ok:
		return "-"
	case l.Status == "sent" && l.EndedAt != nil:
		return clock(*l.EndedAt)
	}
	return or(l.Reason, l.Status)
}

func (w walked) ended() time.Time {
	if w.enrollment.EndedAt == nil {
		return time.Time{}
	}
	return *w.enrollment.EndedAt
}

func clock(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.Local().Format("15:04:05.0")
}
