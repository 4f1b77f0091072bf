package api

import (
	"context"
	"time"

	"lemma"
)

type whoAmI struct {
	Workspace workspaceBody `json:"workspace"`
	Key       keyBody       `json:"key"`
}

type workspaceBody struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
}

func (s *server) whoAmI(ctx context.Context, c *call, _ none) (whoAmI, error) {
	w, err := s.Workspaces.Get(ctx, c.workspace())
	if err != nil {
		return whoAmI{}, err
	}
	return whoAmI{
		Workspace: workspaceBody{ID: lemma.FormatID(lemma.PrefixWorkspace, w.ID), Name: w.Name, CreatedAt: w.CreatedAt.UTC()},
		Key:       showKey(c.key),
	}, nil
}
