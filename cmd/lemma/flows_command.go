package main

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

// flowsCommand asks a running Lemma, over HTTP.
type flowsCommand struct {
	List     flowsListCommand     `cmd:"" help:"List flows, newest first."`
	Get      flowsGetCommand      `cmd:"" help:"Show a flow."`
	Create   flowsCreateCommand   `cmd:"" help:"Make a flow; with a definition, that becomes version 1, a draft."`
	Draft    flowsDraftCommand    `cmd:"" help:"Make the next version, or replace a draft."`
	Discard  flowsDiscardCommand  `cmd:"" help:"Delete a draft."`
	Versions flowsVersionsCommand `cmd:"" help:"List versions, or print what one says."`
	Validate flowsValidateCommand `cmd:"" help:"Find every fault of a version."`
	Plan     flowsPlanCommand     `cmd:"" help:"Tell what publishing would do."`
	Publish  flowsPublishCommand  `cmd:"" help:"Make a version the one that new enrollments follow."`
	Rollback flowsRollbackCommand `cmd:"" help:"Go back to a version that was published before."`
	Pause    flowsPauseCommand    `cmd:"" help:"Refuse triggers, and hold everybody where they are."`
	Resume   flowsResumeCommand   `cmd:"" help:"End a pause, or a drain."`
	Drain    flowsDrainCommand    `cmd:"" help:"Enroll nobody any more; archive when everybody is through."`
	Archive  flowsArchiveCommand  `cmd:"" help:"Enroll nobody any more, and take everybody out."`
	Diff     flowsDiffCommand     `cmd:"" help:"Compare two versions."`
	History  flowsHistoryCommand  `cmd:"" help:"List what was done to a flow."`
	Counts   flowsCountsCommand   `cmd:"" help:"Count who is where."`
	Refusals flowsRefusalsCommand `cmd:"" help:"List the triggers that enrolled nobody, with their reasons."`
	Explain  flowsExplainCommand  `cmd:"" help:"Tell why somebody is, or is not, enrolled."`
	Simulate flowsSimulateCommand `cmd:"" help:"Walk somebody through a version, without a side effect."`
}

// ofFlow is a command about one flow.
type ofFlow struct {
	Flow string `arg:"" help:"The flow's id or name."`
}

// find answers the flow's id.
func (o ofFlow) find(ctx context.Context, c *client.Client) (string, error) {
	return flowID(ctx, c, o.Flow)
}

// flowID finds the flow of a name; an id is one already. Flows that are
// archived may have the name too: the one that is not is meant, or the newest.
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
		return "", fmt.Errorf("there is no flow %q in this workspace", name)
	}
	return archived, nil
}

// ofVersion is a command about one version of a flow.
type ofVersion struct {
	ofFlow
	Version int `help:"Which version; the newest when it is left out."`
}

func (o ofVersion) find(ctx context.Context, c *client.Client) (id string, version int, err error) {
	if id, err = o.ofFlow.find(ctx, c); err != nil || o.Version != 0 {
		return id, o.Version, err
	}
	for v, err := range c.ListFlowVersions(ctx, id, client.PageSize(1)) {
		return id, v.Version, err
	}
	return id, 0, fmt.Errorf("the flow has no version yet: `lemma flows draft` makes one")
}

// numbered is a command whose version may be said without its flag.
type numbered struct {
	Number int `arg:"" optional:"" name:"version" help:"The version, instead of its flag."`
}

// among is the version that is meant, by place or by flag.
func (n numbered) among(flag int) (int, error) {
	if n.Number != 0 && flag != 0 && n.Number != flag {
		return 0, fmt.Errorf("the version is %d and %d: say one", n.Number, flag)
	}
	return max(n.Number, flag), nil
}

// ofNumber is a command about one version, said either way.
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
	Status string `help:"Only those that stand here: draft, live, paused, draining, archived."`
}

func (l flowsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.with(cfg, func(c *client.Client) error {
		return list(l.listing, out, c.ListFlows(ctx, client.FlowFilter{Status: l.Status}), "ID|NAME|STATUS|VERSION|UPDATED", func(f client.Flow) []string {
			return []string{f.ID, f.Name, f.Status, or(f.LiveVersion, "none"), stamp(f.UpdatedAt)}
		})
	})
}

type flowsGetCommand struct {
	talk
	ofFlow
}

func (g flowsGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.with(cfg, func(c *client.Client) error {
		id, err := g.find(ctx, c)
		if err != nil {
			return err
		}
		f, err := c.GetFlow(ctx, id)
		return g.flow(out, f, err)
	})
}

// flow prints a flow that was asked for or changed.
func (t talk) flow(out io.Writer, f client.Flow, err error) error {
	if err != nil {
		return err
	}
	return t.say(out, f, func(out io.Writer) error {
		status := f.Status
		if f.StatusReason != nil {
			status += " because of " + *f.StatusReason + ": " + or(f.StatusDetail, "")
		}
		return facts(out, "id", f.ID, "name", f.Name, "status", status, "live version", or(f.LiveVersion, "none"), "held from", stampOr(f.HeldFrom, ""),
			"held until", stampOr(f.HeldUntil, ""), "spread until", stampOr(f.SpreadUntil, ""), "possible now", strings.Join(f.AllowedActions, ", "))
	})
}

// fromFile reads a definition.
type fromFile struct {
	File string `short:"f" required:"" placeholder:"FILE" help:"JSON of the definition; - is the standard input."`
}

// read answers the definition; a whole flow, as the API takes it, is unwrapped.
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
	talk
	Name string `arg:"" optional:"" help:"What it is called; may be in the file instead."`
	File string `short:"f" placeholder:"FILE" help:"JSON of the definition, or of {name, definition}; - is the standard input."`
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
		return fmt.Errorf("the flow needs a name")
	}
	return n.with(cfg, func(c *client.Client) error {
		f, err := c.CreateFlow(ctx, made)
		return n.flow(out, f, err)
	})
}

type flowsDraftCommand struct {
	talk
	ofFlow
	numbered
	fromFile
	Version int    `help:"Replace this draft; without it the next version is made."`
	IfMatch string `placeholder:"ETAG" help:"Replace it only if it is as it was then: what was printed when it was written, or WRITTEN in the list of versions."`
}

func (d flowsDraftCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	definition, _, err := d.read()
	if err != nil {
		return err
	}
	return d.with(cfg, func(c *client.Client) error {
		id, err := d.find(ctx, c)
		if err != nil {
			return err
		}
		v, err := d.write(ctx, c, id, definition)
		if err != nil {
			return err
		}
		return d.say(out, writtenDraft{v, bare(v.ETag)}, func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "version %d is a draft, written %d times (ETag %s)\n", v.Version, v.Revision, bare(v.ETag))
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
		return client.FlowVersion{}, errors.New("--if-match goes with the draft that is replaced: say its version")
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

// A shell eats the quotes of an ETag: on the command line it is said without.
func bare(etag string) string { return strings.Trim(etag, `"`) }

func quoted(etag string) string { return `"` + bare(etag) + `"` }

type flowsDiscardCommand struct {
	talk
	ofFlow
	Number int `arg:"" name:"version" help:"The draft."`
}

func (d flowsDiscardCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return d.with(cfg, func(c *client.Client) error {
		id, err := d.find(ctx, c)
		if err != nil {
			return err
		}
		if err := c.DeleteFlowVersion(ctx, id, d.Number); err != nil {
			return err
		}
		return d.say(out, map[string]int{"deleted": d.Number}, func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "version %d is gone\n", d.Number)
			return err
		})
	})
}

type flowsVersionsCommand struct {
	listing
	ofFlow
	numbered
	Version int `help:"Print the definition of this one."`
}

func (v flowsVersionsCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	version, err := v.among(v.Version)
	if err != nil {
		return err
	}
	return v.with(cfg, func(c *client.Client) error {
		id, err := v.find(ctx, c)
		switch {
		case err != nil:
			return err
		case version != 0:
			one, err := c.GetFlowVersion(ctx, id, version)
			if err != nil {
				return err
			}
			return talk{JSON: true}.say(out, one.Definition, nil)
		}
		return list(v.listing, out, c.ListFlowVersions(ctx, id), "VERSION|STATUS|WRITTEN|UPDATED|PUBLISHED", func(s client.FlowVersionSummary) []string {
			return []string{fmt.Sprint(s.Version), s.Status, fmt.Sprint(s.Revision), stamp(s.UpdatedAt), stampOr(s.PublishedAt, "never")}
		})
	})
}

type flowsHistoryCommand struct {
	listing
	ofFlow
}

func (h flowsHistoryCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return h.with(cfg, func(c *client.Client) error {
		id, err := h.find(ctx, c)
		if err != nil {
			return err
		}
		return list(h.listing, out, c.GetFlowHistory(ctx, id), "AT|ACTION|VERSION|BY|DETAIL", func(l client.FlowLogLine) []string {
			return []string{stamp(l.At), l.Action, or(l.Version, ""), or(l.APIKeyID, "Lemma"), compact(l.Detail)}
		})
	})
}

// span is a length of time, written as Go does (10m) or as the API does (PT10M).
type span time.Duration

// UnmarshalText is called by kong.
func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		d, err = graph.ParseDuration(string(text))
	}
	if err != nil {
		return fmt.Errorf("%q is no length of time such as 10m or PT10M", text)
	}
	*s = span(d)
	return nil
}

// iso is the length as the API writes it.
func (s span) iso() string { return fmt.Sprintf("PT%dS", int64(time.Duration(s)/time.Second)) }
