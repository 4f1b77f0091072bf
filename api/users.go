package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"lemma"
)

// mostUsers is how many users a refusal to delete names.
const mostUsers = 5

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
		for _, name := range found {
			names = append(names, users.what+" "+strconv.Quote(name))
		}
	}
	if len(names) == 0 {
		return err
	}
	if len(names) > mostUsers {
		names = append(names[:mostUsers], "and others")
	}
	named := *e
	named.Message = fmt.Sprintf("%s: %s", e.Message, strings.Join(names, ", "))
	return &named
}
