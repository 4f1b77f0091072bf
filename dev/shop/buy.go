package shop

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// firstSale is above the ids of all orders that the shop is made with.
const firstSale = 1_000_000_000

// Buy inserts an order of a customer, at most one, and returns its time. If there is
// one already, that is the time of the first.
func (s Shop) Buy(ctx context.Context, customer int64) (placedAt time.Time, err error) {
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		return placedAt, fmt.Errorf("reach the shop's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `
		insert into orders (id, customer_id, total, placed_at) values ($1, $2, 19.90, now()) on conflict do nothing`,
		firstSale+customer, customer); err != nil {
		return placedAt, fmt.Errorf("insert an order of customer %d: %w", customer, err)
	}
	if err := conn.QueryRow(ctx, `select placed_at from orders where id = $1`, firstSale+customer).Scan(&placedAt); err != nil {
		return placedAt, fmt.Errorf("read the order of customer %d: %w", customer, err)
	}
	return placedAt, nil
}
