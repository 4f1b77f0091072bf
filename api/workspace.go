package api

import (
	"context"
	"time"

	"lemma"
	"lemma/links"
	"lemma/workspaces"
)

type whoAmI struct {
	Workspace workspaceBody `json:"workspace"`
	Key       keyBody       `json:"key"`
}

func (b whoAmI) etag() int { return b.Workspace.version }

type workspaceBody struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Page      pageBody  `json:"page"`
	Tracking  *string   `json:"tracking_url"`
	Keys      keyRules  `json:"keys"`
	CreatedAt time.Time `json:"created_at"`
	version   int
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

type pageBody struct {
	Title            string `json:"title"`
	Text             string `json:"text"`
	UnsubscribeLabel string `json:"unsubscribe_label"`
	Color            string `json:"color"`
	Background       string `json:"background"`
	Language         string `json:"language"`
}

func showWorkspace(w workspaces.Workspace) workspaceBody {
	return workspaceBody{ID: lemma.FormatID(lemma.PrefixWorkspace, w.ID), Name: w.Name, Page: pageBody(w.Page),
		Tracking: orNull(w.TrackingURL), Keys: keyRules{keyTimes{iso(w.LockFor), iso(w.SealFor)}, &w.Strategy},
		CreatedAt: w.CreatedAt.UTC(), version: w.Version}
}

func (s *server) whoAmI(ctx context.Context, c *call, _ none) (whoAmI, error) {
	w, err := s.Workspaces.Get(ctx, c.workspace())
	if err != nil {
		return whoAmI{}, err
	}
	return whoAmI{
		Workspace: showWorkspace(w),
		Key:       showKey(c.key),
	}, nil
}

type workspacePatch struct {
	Page     pagePatch `json:"page"`
	Tracking *string   `json:"tracking_url"`
	Keys     keyRules  `json:"keys"`
}

type pagePatch struct {
	Title            *string `json:"title"`
	Text             *string `json:"text"`
	UnsubscribeLabel *string `json:"unsubscribe_label"`
	Color            *string `json:"color"`
	Background       *string `json:"background"`
	Language         *string `json:"language"`
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
	return lock, seal, invalid(faults)
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
