package main

import (
	"context"
	"fmt"
	"io"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audit"
	"lemma/cmd/lemma/remote"
	"lemma/page"
	"lemma/server"
	"lemma/workspaces"
)

// keysCommand creates the first key of a workspace. With that key, the API creates
// others.
type keysCommand struct {
	Create keysCreateCommand `cmd:"" help:"Create a key, and the workspace if there is none with its name. The key is printed once."`
	List   keysListCommand   `cmd:"" help:"List a workspace's keys, newest first."`
	Revoke keysRevokeCommand `cmd:"" help:"Revoke a key permanently."`
}

type keysCreateCommand struct {
	Workspace string   `required:"" help:"The workspace's name."`
	Name      string   `default:"admin" help:"The name of the key."`
	Scope     []string `default:"admin" help:"A scope of the key, such as campaigns:read; admin for all. May be repeated."`
}

func (k keysCreateCommand) run(ctx context.Context, c Config, out io.Writer) error {
	return withWorkspaces(ctx, c, func(w *workspaces.Workspaces) error {
		ws, err := w.ByName(ctx, k.Workspace)
		if lemma.KindOf(err) == lemma.NotFound && err != nil {
			ws, err = w.Create(ctx, k.Workspace)
		}
		if err != nil {
			return err
		}
		id := lemma.NewID()
		key, token, err := w.CreateKey(byUser(ctx, ws.ID, "createKey", id), ws.ID, workspaces.NewKey{ID: id, Name: k.Name, Scopes: k.Scope})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "workspace  %s  %s\nkey        %s\ntoken      %s\n", ws.Name, lemma.FormatID(lemma.PrefixWorkspace, ws.ID),
			lemma.FormatID(lemma.PrefixKey, key.ID), token)
		fmt.Fprintln(out, "The token is not stored. It is not printed again.")
		return nil
	})
}

type keysListCommand struct {
	Workspace string `required:"" help:"The workspace's name."`
}

func (k keysListCommand) run(ctx context.Context, c Config, out io.Writer) error {
	return withWorkspaces(ctx, c, func(w *workspaces.Workspaces) error {
		ws, err := w.ByName(ctx, k.Workspace)
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "ID\tNAME\tPREFIX\tSCOPES\tLAST USED\tREVOKED")
		for q := (page.Query{Limit: 200}); ; {
			keys, next, err := w.ListKeys(ctx, ws.ID, q)
			if err != nil {
				return err
			}
			for _, key := range keys {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", lemma.FormatID(lemma.PrefixKey, key.ID), remote.Printable(key.Name), key.Prefix,
					strings.Join(key.Scopes, ","), orNever(key.LastUsedAt), orNever(key.RevokedAt))
			}
			if next == "" {
				return t.Flush()
			}
			q.Cursor = next
		}
	})
}

type keysRevokeCommand struct {
	Workspace string `required:"" help:"The workspace's name."`
	ID        string `arg:"" help:"The id of the key."`
}

func (k keysRevokeCommand) run(ctx context.Context, c Config, out io.Writer) error {
	return withWorkspaces(ctx, c, func(w *workspaces.Workspaces) error {
		ws, err := w.ByName(ctx, k.Workspace)
		if err != nil {
			return err
		}
		id, ok := lemma.ParseID(lemma.PrefixKey, k.ID)
		if !ok {
			return lemma.Missing("key")
		}
		key, err := w.RevokeKey(byUser(ctx, ws.ID, "revokeKey", id), ws.ID, id)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "key %s (%s) was revoked at %s\n", k.ID, key.Name, orNever(key.RevokedAt))
		return nil
	})
}

// byUser returns a context that records a change of a key by the user of this machine.
func byUser(ctx context.Context, ws uuid.UUID, action string, key uuid.UUID) context.Context {
	name := ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	ctx, _ = audit.With(ctx, audit.Record{WorkspaceID: ws, ActorType: audit.CLI, ActorName: name, Action: action, ResourceType: "api_keys",
		ResourceID: lemma.FormatID(lemma.PrefixKey, key)})
	return ctx
}

func withWorkspaces(ctx context.Context, c Config, f func(*workspaces.Workspaces) error) error {
	pool, err := server.OpenMigrated(ctx, c.server())
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(workspaces.New(pool))
}

func orNever(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return at.UTC().Format(time.RFC3339)
}
