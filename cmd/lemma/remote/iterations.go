package remote

import (
	"context"
	"io"
	"strings"

	"lemma/client"
)

// Iterations are the commands for A/B tests.
type Iterations struct {
	List iterationsListCommand `cmd:"" help:"List A/B tests, newest first."`
}

type iterationsListCommand struct {
	listing
	Campaign string `help:"Only that of this campaign (id)."`
	Status   string `help:"Only A/B tests with this status, such as inconclusive: those wait for a person."`
}

func (l iterationsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.call(cfg, func(c *client.Client) error {
		all := c.ListIterations(ctx, client.IterationFilter{CampaignID: l.Campaign, Status: l.Status})
		return list(l.listing, out, all, "ID|CAMPAIGN|STATUS|WHY|CUT-OFF|WINNER|ALLOWED", func(it client.IterationSummary) []string {
			return []string{it.ID, it.CampaignID, it.Status, or(it.StatusReason, ""), stampOr(it.CutOffAt, ""), or(it.Winner, ""),
				strings.Join(it.Allowed, ", ")}
		})
	})
}
