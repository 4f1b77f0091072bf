package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
)

// mostUsers is how many users a refusal names.
const mostUsers = 5

// checkNeeded refuses a patch by which flows and campaigns in progress would no longer find their
// profiles or addresses: they would exit, and skip, all of them.
func (s *server) checkNeeded(ctx context.Context, c *call, old audience.Audience, p audience.Patch) error {
	profiles, channels := p.Loses(old)
	if !profiles && len(channels) == 0 {
		return nil
	}
	flows, err := s.FlowReader.NeedAudience(ctx, c.workspace(), c.id, profiles, channels)
	if err != nil {
		return err
	}
	campaigns, err := s.Campaigns.NeedAudience(ctx, c.workspace(), c.id, profiles, channels)
	if err != nil || len(flows)+len(campaigns) == 0 {
		return err
	}
	var names []string
	if c.key.Has("flows:read") {
		names = append(names, usersNamed("flow", flows)...)
	}
	if c.key.Has("campaigns:read") {
		names = append(names, usersNamed("campaign", campaigns)...)
	}
	return named(&lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: "flows or campaigns in progress need the key column, " +
		"or the addresses of a channel; make another audience, or end them"}, names)
}

func usersNamed(what string, names []string) (all []string) {
	for _, name := range names {
		all = append(all, what+" "+strconv.Quote(name))
	}
	return all
}

// named adds names to an error.
func named(e *lemma.Error, names []string) error {
	if len(names) == 0 {
		return e
	}
	if len(names) > mostUsers {
		names = append(names[:mostUsers], "and others")
	}
	with := *e
	with.Message = fmt.Sprintf("%s: %s", e.Message, strings.Join(names, ", "))
	return &with
}

// usedBy adds the users of a resource to the refusal to delete it, as far as the key may
// read them. The domain packages cannot do this, since they do not import each other.
func (s *server) usedBy(ctx context.Context, c *call, err error) error {
	var e *lemma.Error
	if !errors.As(err, &e) || e.Code != "in_use" {
		return err
	}
	var names []string
	for _, users := range []struct {
		what, scope string
		find        func(ctx context.Context, ws, id uuid.UUID, most int) ([]string, error)
	}{
		{"flow", "flows:read", s.FlowReader.UsersOf}, {"campaign", "campaigns:read", s.Campaigns.UsersOf},
		{"audience", "audiences:read", s.Audiences.UsersOf},
	} {
		if !c.key.Has(users.scope) {
			continue
		}
		found, failed := users.find(ctx, c.workspace(), c.id, mostUsers+1)
		if failed != nil {
			return failed
		}
		names = append(names, usersNamed(users.what, found)...)
	}
	if len(names) == 0 {
		return err
	}
	return named(e, names)
}
