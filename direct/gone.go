package direct

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// What requests name was checked up to a second ago, and may be deleted since. The transaction
// that stores them notices it, and fails as a whole. Then the requests that name what is gone
// are refused, and the rest is stored together, so that a bulk is stored completely or not at all.

// errGone is the error of such a transaction.
var errGone = errors.New("what a request names was deleted")

// named is something that requests name: a provider, a topic, an audience, or a version of a template.
type named struct {
	id      uuid.UUID
	version int // of a template; otherwise 0
}

// refuseGone refuses requests that name what is gone, unlocks their keys, and returns the rest.
func (d *Direct) refuseGone(ctx context.Context, ws uuid.UUID, all []*request) (left []*request, err error) {
	exists, err := d.readNamed(ctx, ws, all)
	if err != nil {
		return nil, err
	}
	var refused []*request
	for _, r := range all {
		switch template := r.template(); {
		case !exists[named{id: r.content.provider}]:
			r.fail(deleted("a provider"))
		case r.Topic != nil && !exists[named{id: *r.Topic}]:
			r.fail(deleted("a topic"))
		case r.To.AudienceID != nil && !exists[named{id: *r.To.AudienceID}]:
			r.fail(deleted("an audience"))
		case template != named{} && !exists[template]:
			r.fail(errNoTemplate)
		default:
			left = append(left, r)
			continue
		}
		refused = append(refused, r)
	}
	d.unlock(ctx, ws, refused)
	return left, nil
}

func (r *request) template() named {
	if !r.content.row.template.Valid {
		return named{}
	}
	return named{r.content.row.template.UUID, *r.content.row.version}
}

func deleted(what string) *lemma.Error {
	return &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: what + " was deleted meanwhile; repeat the request"}
}

// readNamed reads which of the things exist that requests name.
func (d *Direct) readNamed(ctx context.Context, ws uuid.UUID, all []*request) (map[named]bool, error) {
	var providers, topics, audiences, templates []uuid.UUID
	for _, r := range all {
		providers = append(providers, r.content.provider)
		if r.Topic != nil {
			topics = append(topics, *r.Topic)
		}
		if r.To.AudienceID != nil {
			audiences = append(audiences, *r.To.AudienceID)
		}
		if t := r.template(); t.version != 0 {
			templates = append(templates, t.id)
		}
	}
	rows, _ := d.Pool.Query(ctx, `
		select id, 0 from providers where workspace_id = $1 and id = any($2)
		union all select id, 0 from topics where workspace_id = $1 and id = any($3)
		union all select id, 0 from audiences where workspace_id = $1 and id = any($5)
		union all select template_id, version from template_versions where workspace_id = $1 and template_id = any($4)`,
		ws, providers, topics, templates, audiences)
	exists := map[named]bool{}
	var one named
	_, err := pgx.ForEachRow(rows, []any{&one.id, &one.version}, func() error { exists[one] = true; return nil })
	if err != nil {
		return nil, fmt.Errorf("find what requests name: %w", err)
	}
	return exists, nil
}
