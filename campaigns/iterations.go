package campaigns

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/page"
)

var iterationList = page.List[Iteration]{Name: "iterations", Status: "i.status", Created: "i.created_at",
	Orders: map[string]page.Order[Iteration]{"created_at": page.ByID("i.id", func(it Iteration) uuid.UUID { return it.ID })}}

// ListIterations returns one page of iterations: all of the workspace, or that of one campaign.
func (c *Campaigns) ListIterations(ctx context.Context, workspaceID uuid.UUID, campaign *uuid.UUID, q page.Query) (
	[]Iteration, string, error) {
	statement, err := iterationList.Start(q, workspaceID)
	if err != nil {
		return nil, "", err
	}
	if campaign != nil {
		statement.And("i.campaign_id = " + statement.Arg(*campaign))
	}
	return statement.Read(func(end page.Clauses) ([]Iteration, error) {
		rows, _ := c.pool.Query(ctx, selectIteration+end.Where+" "+end.Order, end.Args...)
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Iteration, error) {
			read, err := pgx.RowToStructByPos[iterationRow](row)
			if err != nil {
				return Iteration{}, err
			}
			return read.iteration(workspaceID)
		})
	})
}
