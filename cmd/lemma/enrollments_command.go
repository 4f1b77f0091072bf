package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"lemma/client"
)

// enrollmentsCommand asks a running Lemma, over HTTP.
type enrollmentsCommand struct {
	List    enrollmentsListCommand    `cmd:"" help:"List enrollments, newest first."`
	Get     enrollmentsGetCommand     `cmd:"" help:"Show an enrollment."`
	History enrollmentsHistoryCommand `cmd:"" help:"Show every step of an enrollment."`
	Create  enrollmentsCreateCommand  `cmd:"" help:"Enroll somebody, whatever the flow's triggers."`
	Exit    enrollmentsExitCommand    `cmd:"" help:"Take somebody out where they stand."`
	Move    enrollmentsMoveCommand    `cmd:"" help:"Put somebody on another node."`
}

type enrollmentsListCommand struct {
	listing
	Flow    string `help:"Only those of this flow, by its id or name."`
	Profile string `help:"Only those of this person."`
	Status  string `help:"Only those that stand here: active, waiting, completed, exited, refused."`
	Node    string `help:"Only those on this node, or that ended there."`
	Version int    `help:"Only those in this version."`
	Trouble string `help:"Only those who are due and cannot go on because of this, such as source_unavailable; any: whatever it is."`
}

func (l enrollmentsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.with(cfg, func(c *client.Client) error {
		f := client.EnrollmentFilter{ProfileKey: l.Profile, Status: l.Status, Node: l.Node, Version: l.Version, Trouble: l.Trouble}
		if l.Flow != "" {
			var err error
			if f.FlowID, err = flowID(ctx, c, l.Flow); err != nil {
				return err
			}
		}
		return list(l.listing, out, c.ListEnrollments(ctx, f), "ID|PROFILE|STATUS|VERSION|NODE|DUE|ENROLLED|ENDED|WHY", func(e client.Enrollment) []string {
			return []string{e.ID, e.ProfileKey, e.Status, fmt.Sprint(e.Version), or(e.Node, "(entry)"), stampOr(e.ResumeAt, ""), stamp(e.EnrolledAt),
				stampOr(e.EndedAt, ""), or(e.ExitReason, or(e.Trouble, ""))}
		})
	})
}

// ofEnrollment is a command about one enrollment.
type ofEnrollment struct {
	ID string `arg:"" help:"The enrollment's id."`
}

type enrollmentsGetCommand struct {
	talk
	ofEnrollment
}

func (g enrollmentsGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.with(cfg, func(c *client.Client) error {
		e, err := c.GetEnrollment(ctx, g.ID)
		return g.enrollment(out, e, err)
	})
}

// enrollment prints one that was asked for or changed.
func (t talk) enrollment(out io.Writer, e client.Enrollment, err error) error {
	if err != nil {
		return err
	}
	return t.say(out, e, func(out io.Writer) error {
		return facts(out, "id", e.ID, "flow", e.FlowID, "version", fmt.Sprint(e.Version), "profile", e.ProfileKey, "status", e.Status, "because of", or(e.ExitReason, ""),
			"node", or(e.Node, "(entry)"), "due", stampOr(e.ResumeAt, ""), "waits for", or(e.Awaits, ""), "trouble", or(e.Trouble, ""), "in vain since", stampOr(e.DueSince, ""),
			"source", e.Source, "enrolled", stamp(e.EnrolledAt), "ended", stampOr(e.EndedAt, ""))
	})
}

type enrollmentsHistoryCommand struct {
	talk
	ofEnrollment
}

func (h enrollmentsHistoryCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return h.with(cfg, func(c *client.Client) error {
		found, err := c.GetEnrollmentHistory(ctx, h.ID)
		if err != nil {
			return err
		}
		return h.say(out, found, func(out io.Writer) error {
			if err := h.enrollment(out, found.Enrollment, nil); err != nil {
				return err
			}
			return table(out, "STEP|AT|VERSION|NODE|WHAT|BECAME|NOTIFICATION|DATA", found.Steps, func(s client.EnrollmentStep) []string {
				return []string{fmt.Sprint(s.Step), stamp(s.At), fmt.Sprint(s.Version), or(s.Node, "(entry)"), s.Event, became(s), or(s.NotificationID, ""), compact(s.Data)}
			})
		})
	})
}

// became is, in a cell, what has become of what a step wrote.
func became(s client.EnrollmentStep) string {
	switch {
	case s.Notification != nil && s.Notification.Reason != nil:
		return s.Notification.Status + ": " + *s.Notification.Reason
	case s.Notification != nil:
		return s.Notification.Status
	case s.Webhook != nil && s.Webhook.State != nil:
		w := s.Webhook
		text := fmt.Sprintf("%s after %d calls", *w.State, w.Attempts)
		if w.Attempts > 0 {
			text += ", last " + or(w.Status, or(w.Reason, ""))
		}
		if w.NextAt != nil {
			text += ", next " + stamp(*w.NextAt)
		}
		return text
	}
	return ""
}

type enrollmentsCreateCommand struct {
	talk
	ofFlow
	Profile    string     `arg:"" help:"Who: the profile key."`
	Properties objectFlag `placeholder:"JSON" help:"What the trigger says."`
	ID         string     `help:"Your own id of it: asked twice under one id, it counts once."`
	At         time.Time  `placeholder:"TIME" help:"When it happened (RFC 3339); without it now."`
	DryRun     bool       `help:"Only say what would happen."`
}

func (n enrollmentsCreateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return n.with(cfg, func(c *client.Client) error {
		id, err := n.find(ctx, c)
		if err != nil {
			return err
		}
		var options []client.CallOption
		if n.DryRun {
			options = append(options, client.DryRun())
		}
		r, err := c.Enroll(ctx, id, client.NewEnrollment{ProfileKey: n.Profile, Properties: n.Properties.raw(), ID: n.ID, OccurredAt: notZero(n.At)}, options...)
		if err != nil {
			return err
		}
		return n.say(out, r, func(out io.Writer) error { return showAnswer(out, r) })
	})
}

// showAnswer says what asking to enroll somebody did, or would do.
func showAnswer(out io.Writer, r client.EnrollAnswer) error {
	if r.DryRun {
		r.Result = "would be " + r.Result
	}
	return showResult(out, r.EnrollResult)
}

// showResult says in a line what a trigger did in a flow.
func showResult(out io.Writer, r client.EnrollResult) error {
	text := "flow " + r.FlowID + ": " + r.Result
	if r.Reason != nil {
		text += " as " + *r.Reason
	}
	if r.EnrollmentID != nil {
		text += ", enrollment " + *r.EnrollmentID
	}
	if r.Detail != nil {
		text += ": " + *r.Detail
	}
	_, err := fmt.Fprintln(out, tame(text))
	return err
}

type enrollmentsExitCommand struct {
	talk
	ofEnrollment
	Note string `help:"Kept in the history."`
}

func (x enrollmentsExitCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return x.with(cfg, func(c *client.Client) error {
		e, err := c.ExitEnrollment(ctx, x.ID, x.Note)
		return x.enrollment(out, e, err)
	})
}

type enrollmentsMoveCommand struct {
	talk
	ofEnrollment
	Node    string `arg:"" help:"The node to put them on."`
	Version int    `help:"A published version; without it the one that they are in."`
}

func (m enrollmentsMoveCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return m.with(cfg, func(c *client.Client) error {
		e, err := c.MoveEnrollment(ctx, m.ID, m.Version, m.Node)
		return m.enrollment(out, e, err)
	})
}
