package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"lemma"
	"lemma/workspaces"
)

// keysCommand is for the first key of a workspace; with that, the API makes others.
type keysCommand struct {
	Create keysCreateCommand `cmd:"" help:"Make a key, and the workspace if it is new. The key is shown once."`
	List   keysListCommand   `cmd:"" help:"List a workspace's keys, newest first."`
	Revoke keysRevokeCommand `cmd:"" help:"Make a key worthless, for ever."`
}

type keysCreateCommand struct {
	Workspace string   `required:"" help:"The workspace's name."`
	Name      string   `default:"admin" help:"What the key is for."`
	Scope     []string `default:"admin" help:"What the key may do, such as campaigns:read; admin is everything."`
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
		key, token, err := w.CreateKey(ctx, ws.ID, workspaces.NewKey{ID: lemma.NewID(), Name: k.Name, Scopes: k.Scope})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "workspace  %s  %s\nkey        %s\ntoken      %s\n", ws.Name, lemma.FormatID(lemma.PrefixWorkspace, ws.ID), lemma.FormatID(lemma.PrefixKey, key.ID), token)
		fmt.Fprintln(out, "The token is not stored and not shown again.")
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
		fmt.Fprintln(t, "ID\tNAME\tBEGINS\tSCOPES\tLAST USED\tREVOKED")
		for page := (lemma.Page{Limit: 200}); ; {
			keys, next, err := w.ListKeys(ctx, ws.ID, page)
			if err != nil {
				return err
			}
			for _, key := range keys {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", lemma.FormatID(lemma.PrefixKey, key.ID), key.Name, key.Prefix,
					strings.Join(key.Scopes, ","), orNever(key.LastUsedAt), orNever(key.RevokedAt))
			}
			if next == "" {
				return t.Flush()
			}
			page.Cursor = next
		}
	})
}

type keysRevokeCommand struct {
	Workspace string `required:"" help:"The workspace's name."`
	ID        string `arg:"" help:"The key's id, as list shows it."`
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
		key, err := w.RevokeKey(ctx, ws.ID, id)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "key %s (%s) is revoked since %s\n", k.ID, key.Name, orNever(key.RevokedAt))
		return nil
	})
}

func withWorkspaces(ctx context.Context, c Config, f func(*workspaces.Workspaces) error) error {
	pool, err := openMigrated(ctx, c)
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
