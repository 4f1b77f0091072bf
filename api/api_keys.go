package api

import (
	"context"

	"lemma"
	"lemma/client"
	"lemma/workspaces"
)

func showKey(k workspaces.Key) client.APIKey {
	b := client.APIKey{ID: lemma.FormatID(lemma.PrefixKey, k.ID), Name: k.Name, Prefix: k.Prefix, Scopes: k.Scopes, Status: "active",
		CreatedAt: k.CreatedAt.UTC(), LastUsedAt: utc(k.LastUsedAt), RevokedAt: utc(k.RevokedAt)}
	if k.RevokedAt != nil {
		b.Status = "revoked"
	}
	return b
}

// createdKey is the only answer with the token. The answer that is kept for a replay
// has none.
type createdKey struct {
	client.APIKey
	Token *string `json:"token"`
}

func (k createdKey) location() string { return "/v1/api_keys/" + k.ID }
func (k createdKey) redact() any      { return createdKey{APIKey: k.APIKey} }

type newKey struct {
	Name   string   `json:"name"`
	Scopes []string `json:"scopes"`
}

func (s *server) listKeys(ctx context.Context, c *call, _ none) (list[client.APIKey], error) {
	found, next, err := s.Workspaces.ListKeys(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showKey)
}

// createKey gives a key no scope that its creator does not have.
func (s *server) createKey(ctx context.Context, c *call, in newKey) (createdKey, error) {
	for _, scope := range in.Scopes {
		if err := c.need(scope); err != nil {
			return createdKey{}, err
		}
	}
	key, token, err := s.Workspaces.CreateKey(ctx, c.workspace(),
		workspaces.NewKey{ID: c.newID, Attempt: c.attempt, Name: in.Name, Scopes: in.Scopes})
	if err != nil {
		return createdKey{}, err
	}
	return createdKey{showKey(key), &token}, nil
}

func (s *server) getKey(ctx context.Context, c *call, _ none) (client.APIKey, error) {
	key, err := s.Workspaces.GetKey(ctx, c.workspace(), c.id)
	return showKey(key), err
}

// revokeKey refuses keys with scopes beyond the caller's: a key with few scopes must not
// lock out an admin. Scopes never change, so the scopes that were read are those that
// are revoked.
func (s *server) revokeKey(ctx context.Context, c *call, _ none) (none, error) {
	key, err := s.Workspaces.GetKey(ctx, c.workspace(), c.id)
	if err != nil {
		return none{}, err
	}
	for _, scope := range key.Scopes {
		if !c.key.Has(scope) {
			return none{}, lacking(scope, "a key revokes only keys that it could have made: it does not have the scope "+scope)
		}
	}
	_, err = s.Workspaces.RevokeKey(ctx, c.workspace(), c.id)
	return none{}, err
}
