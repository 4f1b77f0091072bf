package remote

import (
	"context"
	"fmt"
	"io"
	"time"

	"lemma/client"
)

// Enrollments are the commands for enrollments.
type Enrollments struct {
	List    enrollmentsListCommand    `cmd:"" help:"List enrollments, newest first."`
	Get     enrollmentsGetCommand     `cmd:"" help:"Show an enrollment."`
	History enrollmentsHistoryCommand `cmd:"" help:"List the steps of an enrollment."`
	Create  enrollmentsCreateCommand  `cmd:"" help:"Enroll a profile directly, whatever the flow's triggers are."`
	Exit    enrollmentsExitCommand    `cmd:"" help:"End an enrollment."`
	Move    enrollmentsMoveCommand    `cmd:"" help:"Move an enrollment to another node."`
}

type enrollmentsListCommand struct {
	listing
	Flow          string `help:"Only enrollments of this flow (id or name)."`
	Profile       string `help:"Only enrollments of this profile."`
	Status        string `help:"Only enrollments with this status: active, waiting, completed, exited, refused."`
	Node          string `help:"Only enrollments at this node, or that ended there."`
	Version       int    `help:"Only enrollments in this version."`
	BlockedReason string `help:"Only enrollments that are blocked for this reason, such as source_unavailable; any: for any reason."`
}

func (l enrollmentsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.call(cfg, func(c *client.Client) error {
		f := client.EnrollmentFilter{ProfileKey: l.Profile, Status: l.Status, Node: l.Node, Version: l.Version, BlockedReason: l.BlockedReason}
		if l.Flow != "" {
			var err error
			if f.FlowID, err = flowID(ctx, c, l.Flow); err != nil {
				return err
			}
		}
		return list(l.listing, out, c.ListEnrollments(ctx, f), "ID|PROFILE|STATUS|VERSION|NODE|DUE|ENROLLED|ENDED|WHY",
			func(e client.Enrollment) []string {
				return []string{e.ID, e.ProfileKey, e.Status, fmt.Sprint(e.Version), or(e.Node, "(entry)"), stampOr(e.ResumeAt, ""), stamp(e.CreatedAt),
					stampOr(e.EndedAt, ""), or(e.ExitReason, or(e.BlockedReason, ""))}
			})
	})
}

// ofEnrollment is a command for one enrollment.
type ofEnrollment struct {
	ID string `arg:"" help:"The enrollment's id."`
}

type enrollmentsGetCommand struct {
	output
	ofEnrollment
}

func (g enrollmentsGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.call(cfg, func(c *client.Client) error {
		e, err := c.GetEnrollment(ctx, g.ID)
		return g.enrollment(out, e, err)
	})
}

// enrollment prints an enrollment that was read or changed.
func (o output) enrollment(out io.Writer, e client.Enrollment, err error) error {
	if err != nil {
		return err
	}
	return o.print(out, e, func(out io.Writer) error {
		return printFields(out, "id", e.ID, "flow", e.FlowID, "version", fmt.Sprint(e.Version), "profile", e.ProfileKey, "status", e.Status,
			"because of", or(e.ExitReason, ""), "node", or(e.Node, "(entry)"), "due", stampOr(e.ResumeAt, ""), "waits for", or(e.Awaits, ""),
			"blocked reason", or(e.BlockedReason, ""),
			"blocked since", stampOr(e.BlockedSince, ""),
			"trigger", e.TriggerType, "enrolled", stamp(e.CreatedAt), "ended", stampOr(e.EndedAt, ""))
	})
}

type enrollmentsHistoryCommand struct {
	output
	ofEnrollment
}

func (h enrollmentsHistoryCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return h.call(cfg, func(c *client.Client) error {
		found, err := c.GetEnrollmentHistory(ctx, h.ID)
		for err == nil && found.Truncated {
			var more client.EnrollmentHistory
			more, err = c.GetEnrollmentHistory(ctx, h.ID, client.AfterStep(found.Steps[len(found.Steps)-1].Step))
			found.Steps, found.Truncated = append(found.Steps, more.Steps...), more.Truncated && len(more.Steps) > 0
		}
		if err != nil {
			return err
		}
		return h.print(out, found, func(out io.Writer) error {
			if err := h.enrollment(out, found.Enrollment, nil); err != nil {
				return err
			}
			return Table(out, "STEP|AT|VERSION|NODE|EVENT|OUTCOME|NOTIFICATION|DATA", found.Steps, func(s client.EnrollmentStep) []string {
				return []string{fmt.Sprint(s.Step), stamp(s.At), fmt.Sprint(s.Version), or(s.Node, "(entry)"), s.Event, outcome(s), notificationID(s),
					compact(s.Data)}
			})
		})
	})
}

func notificationID(s client.EnrollmentStep) string {
	if s.Notification == nil {
		return ""
	}
	return s.Notification.ID
}

// outcome formats the outcome of a message or webhook that a step created.
func outcome(s client.EnrollmentStep) string {
	switch {
	case s.Notification != nil && len(s.Others) > 0:
		all := map[string]int64{or(s.Notification.Status, "deleted"): 1}
		for _, n := range s.Others {
			all[or(n.Status, "deleted")]++
		}
		return tally(all)
	case s.Notification != nil && s.Notification.Reason != nil:
		return or(s.Notification.Status, "") + ": " + *s.Notification.Reason
	case s.Notification != nil:
		return or(s.Notification.Status, "")
	case s.WebhookMessage != nil && s.WebhookMessage.Status != nil && s.WebhookMessage.Attempts != nil:
		w := s.WebhookMessage
		text := fmt.Sprintf("%s after %d calls", *w.Status, *w.Attempts)
		if *w.Attempts > 0 {
			text += ", last " + or(w.StatusCode, or(w.Reason, ""))
		}
		if w.NextAt != nil {
			text += ", next " + stamp(*w.NextAt)
		}
		return text
	}
	return ""
}

type enrollmentsCreateCommand struct {
	output
	ofFlow
	Profile    string     `arg:"" help:"The profile key."`
	Properties objectFlag `placeholder:"JSON" help:"Properties of the trigger."`
	SourceID   string     `help:"Your id of the request: an id that was used already enrolls once."`
	At         time.Time  `placeholder:"TIME" help:"When it happened (RFC 3339); default: now."`
	DryRun     bool       `help:"Preview: print what would happen."`
}

func (n enrollmentsCreateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return n.onFlow(ctx, cfg, n, func(c *client.Client, id string) error {
		var options []client.CallOption
		if n.DryRun {
			options = append(options, client.DryRun())
		}
		r, err := c.Enroll(ctx, id,
			client.NewEnrollment{ProfileKey: n.Profile, Properties: n.Properties.raw(), SourceID: n.SourceID, OccurredAt: notZero(n.At)}, options...)
		if err != nil {
			return err
		}
		return n.print(out, r, func(out io.Writer) error { return showEnrollment(out, r) })
	})
}

// showEnrollment prints the result of an enrollment or of its preview.
func showEnrollment(out io.Writer, r client.EnrollAnswer) error {
	if r.DryRun {
		r.Status = "would be " + r.Status
	}
	return showResult(out, r.EnrollResult)
}

// showResult prints the result of a trigger in one flow.
func showResult(out io.Writer, r client.EnrollResult) error {
	text := "flow " + r.FlowID + ": " + r.Status
	if r.Reason != nil {
		text += " as " + *r.Reason
	}
	if r.EnrollmentID != nil {
		text += ", enrollment " + *r.EnrollmentID
	}
	if r.Detail != nil {
		text += ": " + *r.Detail
	}
	_, err := fmt.Fprintln(out, Printable(text))
	return err
}

type enrollmentsExitCommand struct {
	output
	ofEnrollment
	Note string `help:"A note for the history."`
}

func (x enrollmentsExitCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return x.call(cfg, func(c *client.Client) error {
		e, err := c.ExitEnrollment(ctx, x.ID, x.Note)
		return x.enrollment(out, e, err)
	})
}

type enrollmentsMoveCommand struct {
	output
	ofEnrollment
	Node    string `arg:"" help:"The node to move to."`
	Version int    `help:"A published version; default: the enrollment's."`
}

func (m enrollmentsMoveCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return m.call(cfg, func(c *client.Client) error {
		e, err := c.MoveEnrollment(ctx, m.ID, m.Version, m.Node)
		return m.enrollment(out, e, err)
	})
}
