package campaigns

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/message"
)

// Link is a link of a campaign's messages, with its clicks.
type Link struct {
	Variant       string // of an experiment; empty without one
	Number        int    // in the template, from 0
	URL           string // as it is written there
	Clicks        int64  // without those of machines
	MachineClicks int64
}

// linked is a content of a campaign and the clicks on its links.
type linked struct {
	Variant  string
	Template uuid.UUID
	Version  int
	Subject  string
	Before   string // the preheader
	Clicks   map[int]int64
	Machine  map[int]int64
}

// Links lists the links of a campaign in the order of its variants and their templates.
// Before the start of a campaign there are none.
func (c *Campaigns) Links(ctx context.Context, ws, id uuid.UUID) ([]Link, error) {
	if _, err := c.Get(ctx, ws, id); err != nil {
		return nil, err
	}
	rows, _ := c.pool.Query(ctx, `
		select o.variant, t.template_id, t.template_version, coalesce(t.subject, ''), coalesce(t.preheader, ''),
			coalesce(l.clicks, '{}'), coalesce(l.machine, '{}')
		from (
			select -1 as ordinal, '' as variant, array[$2::uuid] as contents
			where not exists (select from iterations i where i.workspace_id = $1 and i.campaign_id = $2)
			union all
			select v.ordinal, v.name, array[v.content_id] || case when i.winner = v.ordinal then array[i.rollout_id] else '{}' end
			from iterations i join iteration_variants v on v.workspace_id = i.workspace_id and v.iteration_id = i.id
			where i.workspace_id = $1 and i.campaign_id = $2
		) o
		join contents t on t.workspace_id = $1 and t.id = o.contents[1]
		cross join lateral (
			select jsonb_object_agg(s.link, s.clicks) as clicks, jsonb_object_agg(s.link, s.machine) as machine
			from (
				select l.link, sum(l.clicks) as clicks, sum(l.machine_clicks) as machine from link_counts l
				where l.workspace_id = $1 and l.origin_id = $2 and l.content_id = any(o.contents) group by l.link
			) s
		) l
		order by o.ordinal`, ws, id)
	contents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[linked])
	if err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	var all []Link
	for _, of := range contents {
		template, err := c.templates.Compiled(ctx, ws, of.Template, of.Version)
		if err != nil {
			return nil, err
		}
		if template, err = template.Replaced(message.Replacement{Subject: of.Subject, Preheader: of.Before}); err != nil {
			return nil, err
		}
		for n, url := range template.Links() {
			all = append(all, Link{of.Variant, n, url, of.Clicks[n], of.Machine[n]})
		}
	}
	return all, nil
}
