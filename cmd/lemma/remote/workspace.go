package remote

import (
	"context"
	"io"

	"lemma/client"
)

// Workspace are the commands for the workspace of the API key.
type Workspace struct {
	Get    workspaceGetCommand    `cmd:"" help:"Show the workspace of the API key, and the key."`
	Update workspaceUpdateCommand `cmd:"" help:"Change the defaults of the workspace."`
}

type workspaceGetCommand struct{ output }

func (g workspaceGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.call(cfg, func(c *client.Client) error {
		now, err := c.GetWorkspace(ctx)
		if err != nil {
			return err
		}
		return g.print(out, now, func(out io.Writer) error {
			return printFields(out, append(fieldsOf(now.Workspace), "key", now.Key.ID, "key name", now.Key.Name)...)
		})
	})
}

func fieldsOf(w client.Workspace) []string {
	return []string{"id", w.ID, "name", w.Name, "tracking url", or(w.TrackingURL, ""), "lock for", w.Keys.LockFor, "seal for", w.Keys.SealFor,
		"strategy", w.Keys.Strategy, "created", stamp(w.CreatedAt)}
}

type workspaceUpdateCommand struct {
	output
	LockFor     string  `placeholder:"DURATION" help:"How long a request of a direct notification locks its key (ISO 8601): PT1S to PT1H."`
	SealFor     string  `placeholder:"DURATION" help:"How long a key stays sealed after its notification has ended (ISO 8601): PT1S to P3D."`
	Strategy    string  `help:"Strategy of direct notifications: at_most_once or at_least_once."`
	TrackingURL *string `name:"links-url" placeholder:"URL" help:"Where links of messages lead: https:// and a host; empty: this server."`
}

func (u workspaceUpdateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	p := client.WorkspacePatch{TrackingURL: u.TrackingURL}
	if keys := (client.KeyDefaults{LockFor: u.LockFor, SealFor: u.SealFor, Strategy: u.Strategy}); keys != (client.KeyDefaults{}) {
		p.Keys = &keys
	}
	return u.call(cfg, func(c *client.Client) error {
		w, err := c.UpdateWorkspace(ctx, p)
		if err != nil {
			return err
		}
		return u.print(out, w, func(out io.Writer) error { return printFields(out, fieldsOf(w)...) })
	})
}
