package api

import (
	"context"
	"time"

	"lemma"
	"lemma/api/strict"
	"lemma/client"
	"lemma/links"
	"lemma/workspaces"
)

type whoAmI struct {
	client.CurrentWorkspace
	version int // of the workspace
}

func (b whoAmI) etag() int { return b.version }

type workspaceBody struct {
	client.Workspace
	version int
}

// keyTimes are the times of the keys of direct notifications.
type keyTimes struct {
	LockFor *string `json:"lock_for"`
	SealFor *string `json:"seal_for"`
}

// keyRules are the defaults of direct notifications for their keys.
type keyRules struct {
	keyTimes
	Strategy *string `json:"strategy"`
}

func (b workspaceBody) etag() int { return b.version }

func showWorkspace(w workspaces.Workspace) workspaceBody {
	return workspaceBody{client.Workspace{ID: lemma.FormatID(lemma.PrefixWorkspace, w.ID), Name: w.Name, Page: client.PreferencePage(w.Page),
		TrackingURL: orNull(w.TrackingURL), CreatedAt: w.CreatedAt.UTC(),
		Keys: client.KeyDefaults{LockFor: *iso(w.LockFor), SealFor: *iso(w.SealFor), Strategy: w.Strategy}}, w.Version}
}

func (s *server) whoAmI(ctx context.Context, c *call, _ none) (whoAmI, error) {
	w, err := s.Workspaces.Get(ctx, c.workspace())
	if err != nil {
		return whoAmI{}, err
	}
	return whoAmI{client.CurrentWorkspace{Workspace: showWorkspace(w).Workspace, Key: showKey(c.key)}, w.Version}, nil
}

type workspacePatch struct {
	Page     client.PreferencePagePatch `json:"page"`
	Tracking *string                    `json:"tracking_url"`
	Keys     keyRules                   `json:"keys"`
}

func (s *server) updateWorkspace(ctx context.Context, c *call, in workspacePatch) (workspaceBody, error) {
	var err error
	patch := workspaces.Patch{Page: workspaces.PagePatch(in.Page), TrackingURL: in.Tracking, Strategy: in.Keys.Strategy}
	if patch.LockFor, patch.SealFor, err = in.Keys.read("/keys"); err != nil {
		return workspaceBody{}, err
	}
	changed, err := s.Workspaces.Update(ctx, c.workspace(), c.ifMatch, patch)
	return showWorkspace(changed), err
}

// read parses the times; nil stays nil.
func (t keyTimes) read(pointer string) (lock, seal *time.Duration, err error) {
	var faults []lemma.Field
	for _, of := range []struct {
		name string
		text *string
		to   **time.Duration
	}{{"/lock_for", t.LockFor, &lock}, {"/seal_for", t.SealFor, &seal}} {
		if of.text != nil {
			d := readDuration(pointer+of.name, of.text, &faults)
			*of.to = &d
		}
	}
	return lock, seal, strict.Invalid(faults)
}

type linkKeyBody struct {
	ID        string    `json:"id"`
	Number    int       `json:"number"`
	CreatedAt time.Time `json:"created_at"`
	SignsFrom time.Time `json:"signs_from"`
}

func (s *server) rotateLinkKey(ctx context.Context, c *call, _ none) (linkKeyBody, error) {
	k, err := s.Links.Rotate(ctx, c.workspace(), c.newID)
	return linkKeyBody{ID: lemma.FormatID(lemma.PrefixLinkKey, k.ID), Number: k.Number, CreatedAt: k.CreatedAt.UTC(),
		SignsFrom: k.CreatedAt.Add(links.RotationDelay).UTC()}, err
}
