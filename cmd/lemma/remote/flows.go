package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"lemma/client"
	"lemma/flows/graph"
)

// Flows are the commands for flows.
type Flows struct {
	List     flowsListCommand     `cmd:"" help:"List flows, newest first."`
	Get      flowsGetCommand      `cmd:"" help:"Show a flow."`
	Create   flowsCreateCommand   `cmd:"" help:"Create a flow, with version 1 as a draft if a definition is given."`
	Draft    flowsDraftCommand    `cmd:"" help:"Create the next version, or replace a draft."`
	Discard  flowsDiscardCommand  `cmd:"" help:"Delete a draft."`
	Versions flowsVersionsCommand `cmd:"" help:"List versions, or print the definition of one."`
	Validate flowsValidateCommand `cmd:"" help:"Check a version and print all its faults."`
	Plan     flowsPlanCommand     `cmd:"" help:"Show what publishing a version would change."`
	Publish  flowsPublishCommand  `cmd:"" help:"Publish a version: new enrollments follow it."`
	Rollback flowsRollbackCommand `cmd:"" help:"Return to a version that was published before."`
	Pause    flowsPauseCommand    `cmd:"" help:"Refuse triggers and stop all enrollments where they are."`
	Resume   flowsResumeCommand   `cmd:"" help:"End a pause, or a drain."`
	Drain    flowsDrainCommand    `cmd:"" help:"Stop enrolling; archive when all enrollments have ended."`
	Archive  flowsArchiveCommand  `cmd:"" help:"Stop enrolling and end all enrollments."`
	Diff     flowsDiffCommand     `cmd:"" help:"Compare two versions."`
	History  flowsHistoryCommand  `cmd:"" help:"List the changes of a flow."`
	Counts   flowsCountsCommand   `cmd:"" help:"Count enrollments and refusals, in total and by node."`
	Refusals flowsRefusalsCommand `cmd:"" help:"List the triggers that were refused, with reasons."`
	Explain  flowsExplainCommand  `cmd:"" help:"Explain why a profile is, or is not, enrolled."`
	Simulate flowsSimulateCommand `cmd:"" help:"Simulate a version for a profile, without side effects."`
}

// ofFlow is a command for one flow.
type ofFlow struct {
	Flow string `arg:"" help:"The flow's id or name."`
}

// find returns the id of the flow.
func (o ofFlow) find(ctx context.Context, c *client.Client) (string, error) {
	return flowID(ctx, c, o.Flow)
}

// onFlow calls do with the id of the flow of a command.
func (o output) onFlow(ctx context.Context, cfg Config, of interface {
	find(ctx context.Context, c *client.Client) (string, error)
}, do func(c *client.Client, id string) error) error {
	return o.call(cfg, func(c *client.Client) error {
		id, err := of.find(ctx, c)
		if err != nil {
			return err
		}
		return do(c, id)
	})
}

// onVersion calls do with the flow and the version of a command.
func (o output) onVersion(ctx context.Context, cfg Config, of interface {
	find(ctx context.Context, c *client.Client) (string, int, error)
}, do func(c *client.Client, id string, n int) error) error {
	return o.call(cfg, func(c *client.Client) error {
		id, n, err := of.find(ctx, c)
		if err != nil {
			return err
		}
		return do(c, id, n)
	})
}

// flowID returns the id of a flow by its name; an id is returned as it is. Names
// are unique among flows that are not archived: that flow is found, or else the
// newest archived one.
func flowID(ctx context.Context, c *client.Client, name string) (string, error) {
	if strings.HasPrefix(name, "flw_") {
		return name, nil
	}
	archived := ""
	for f, err := range c.ListFlows(ctx, client.FlowFilter{}) {
		switch {
		case err != nil:
			return "", err
		case f.Name == name && f.Status != "archived":
			return f.ID, nil
		case f.Name == name && archived == "":
			archived = f.ID
		}
	}
	if archived == "" {
		return "", fmt.Errorf("no flow %q in this workspace", name)
	}
	return archived, nil
}

// ofVersion is a command for one version of a flow.
type ofVersion struct {
	ofFlow
	Version int `help:"The version; default: the newest."`
}

func (o ofVersion) find(ctx context.Context, c *client.Client) (id string, version int, err error) {
	if id, err = o.ofFlow.find(ctx, c); err != nil || o.Version != 0 {
		return id, o.Version, err
	}
	for v, err := range c.ListFlowVersions(ctx, id, client.FlowVersionFilter{}, client.PageSize(1)) {
		return id, v.Version, err
	}
	return id, 0, errors.New("the flow has no version: create one with `lemma flows draft`")
}

// numbered is a command whose version may also be given as an argument.
type numbered struct {
	Number int `arg:"" optional:"" name:"version" help:"The version, instead of the flag."`
}

// among returns the version that is given as an argument or by a flag.
func (n numbered) among(flag int) (int, error) {
	if n.Number != 0 && flag != 0 && n.Number != flag {
		return 0, fmt.Errorf("the version is given twice, as %d and %d: give one", n.Number, flag)
	}
	return max(n.Number, flag), nil
}

// ofNumber is a command for one version, given either way.
type ofNumber struct {
	ofVersion
	numbered
}

func (o ofNumber) find(ctx context.Context, c *client.Client) (id string, version int, err error) {
	of := o.ofVersion
	if of.Version, err = o.among(of.Version); err != nil {
		return "", 0, err
	}
	return of.find(ctx, c)
}

type flowsListCommand struct {
	listing
	Status string `help:"Only flows with this status: draft, live, paused, draining, archived."`
}

func (l flowsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.call(cfg, func(c *client.Client) error {
		return list(l.listing, out, c.ListFlows(ctx, client.FlowFilter{Status: l.Status}), "ID|NAME|STATUS|VERSION|UPDATED",
			func(f client.Flow) []string {
				return []string{f.ID, f.Name, f.Status, or(f.LiveVersion, "none"), stamp(f.UpdatedAt)}
			})
	})
}

type flowsGetCommand struct {
	output
	ofFlow
}

func (g flowsGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.onFlow(ctx, cfg, g, func(c *client.Client, id string) error {
		f, err := c.GetFlow(ctx, id)
		return g.flow(out, f, err)
	})
}

// flow prints a flow that was read or changed.
func (o output) flow(out io.Writer, f client.Flow, err error) error {
	if err != nil {
		return err
	}
	return o.print(out, f, func(out io.Writer) error {
		status := f.Status
		if f.StatusReason != nil {
			status += " because of " + *f.StatusReason + ": " + or(f.StatusDetail, "")
		}
		return printFields(out, "id", f.ID, "name", f.Name, "status", status, "live version", or(f.LiveVersion, "none"),
			"paused at", stampOr(f.PausedAt, ""), "resumed at", stampOr(f.ResumedAt, ""), "catch-up until", stampOr(f.CatchUpUntil, ""),
			"allowed actions", strings.Join(f.AllowedActions, ", "))
	})
}

// fromFile reads a definition.
type fromFile struct {
	File string `short:"f" required:"" placeholder:"FILE" help:"The definition as JSON; - reads standard input."`
}

// read returns the definition. The file may also have a whole flow, as in requests.
func (f fromFile) read() (definition json.RawMessage, name string, err error) {
	raw, err := readFile(f.File)
	if err != nil {
		return nil, "", err
	}
	var whole struct {
		Name       string          `json:"name"`
		Definition json.RawMessage `json:"definition"`
	}
	if err := json.Unmarshal(raw, &whole); err != nil {
		return nil, "", fmt.Errorf("%s is not JSON: %w", f.File, err)
	}
	if whole.Definition != nil {
		return whole.Definition, whole.Name, nil
	}
	return raw, "", nil
}

func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

type flowsCreateCommand struct {
	output
	Name string `arg:"" optional:"" help:"The name; may be in the file instead."`
	File string `short:"f" placeholder:"FILE" help:"JSON of the definition, or of {name, definition}; - reads standard input."`
}

func (n flowsCreateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	made := client.NewFlow{Name: n.Name}
	if n.File != "" {
		definition, name, err := fromFile{n.File}.read()
		if err != nil {
			return err
		}
		if made.Definition = definition; made.Name == "" {
			made.Name = name
		}
	}
	if made.Name == "" {
		return errors.New("the flow must have a name")
	}
	return n.call(cfg, func(c *client.Client) error {
		f, err := c.CreateFlow(ctx, made)
		return n.flow(out, f, err)
	})
}

type flowsDraftCommand struct {
	output
	ofFlow
	numbered
	fromFile
	Version int    `help:"The draft to replace; default: create the next version."`
	IfMatch string `placeholder:"ETAG" help:"Replace the draft only if it has this ETag, as printed when it was written (REVISION in the list of versions)."`
}

func (d flowsDraftCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	definition, _, err := d.read()
	if err != nil {
		return err
	}
	return d.onFlow(ctx, cfg, d, func(c *client.Client, id string) error {
		v, err := d.write(ctx, c, id, definition)
		if err != nil {
			return err
		}
		return d.print(out, writtenDraft{v, bare(v.ETag)}, func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "version %d is a draft, revision %d (ETag %s)\n", v.Version, v.Revision, bare(v.ETag))
			return err
		})
	})
}

func (d flowsDraftCommand) write(ctx context.Context, c *client.Client, id string, definition json.RawMessage) (client.FlowVersion, error) {
	version, err := d.among(d.Version)
	switch {
	case err != nil:
		return client.FlowVersion{}, err
	case version == 0 && d.IfMatch != "":
		return client.FlowVersion{}, errors.New("--if-match needs the version of the draft to replace")
	case version == 0:
		return c.CreateFlowVersion(ctx, id, definition)
	case d.IfMatch == "":
		return c.UpdateFlowVersion(ctx, id, version, definition)
	}
	return c.UpdateFlowVersion(ctx, id, version, definition, client.IfMatch(quoted(d.IfMatch)))
}

// writtenDraft is a version as JSON, with its ETag.
type writtenDraft struct {
	client.FlowVersion
	Tag string `json:"etag"`
}

// On the command line an ETag has no quotes, since a shell removes them.
func bare(etag string) string { return strings.Trim(etag, `"`) }

func quoted(etag string) string { return `"` + bare(etag) + `"` }

type flowsDiscardCommand struct {
	output
	ofFlow
	Number int `arg:"" name:"version" help:"The draft."`
}

func (d flowsDiscardCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return d.onFlow(ctx, cfg, d, func(c *client.Client, id string) error {
		if err := c.DeleteFlowVersion(ctx, id, d.Number); err != nil {
			return err
		}
		return d.print(out, map[string]int{"deleted": d.Number}, func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "version %d is deleted\n", d.Number)
			return err
		})
	})
}

type flowsVersionsCommand struct {
	listing
	ofFlow
	numbered
	Version int `help:"Print the definition of this version."`
}

func (v flowsVersionsCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	version, err := v.among(v.Version)
	if err != nil {
		return err
	}
	return v.call(cfg, func(c *client.Client) error {
		id, err := v.find(ctx, c)
		switch {
		case err != nil:
			return err
		case version != 0:
			one, err := c.GetFlowVersion(ctx, id, version)
			if err != nil {
				return err
			}
			return output{JSON: true}.print(out, one.Definition, nil)
		}
		return list(v.listing, out, c.ListFlowVersions(ctx, id, client.FlowVersionFilter{}), "VERSION|STATUS|REVISION|UPDATED|PUBLISHED",
			func(s client.FlowVersionSummary) []string {
				return []string{fmt.Sprint(s.Version), s.Status, fmt.Sprint(s.Revision), stamp(s.UpdatedAt), stampOr(s.PublishedAt, "never")}
			})
	})
}

type flowsHistoryCommand struct {
	listing
	ofFlow
}

func (h flowsHistoryCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return h.onFlow(ctx, cfg, h, func(c *client.Client, id string) error {
		return list(h.listing, out, c.GetFlowHistory(ctx, id), "AT|ACTION|VERSION|BY|DETAIL", func(l client.FlowLogLine) []string {
			return []string{stamp(l.CreatedAt), l.Action, or(l.Version, ""), or(l.APIKeyID, "Lemma"), compact(l.Detail)}
		})
	})
}

// span is a duration, written as in Go (10m) or as in the API (PT10M).
type span time.Duration

// UnmarshalText is called by kong.
func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		d, err = graph.ParseDuration(string(text))
	}
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 10m or PT10M", text)
	}
	*s = span(d)
	return nil
}

// iso formats the duration for the API.
func (s span) iso() string { return fmt.Sprintf("PT%dS", int64(time.Duration(s)/time.Second)) }
