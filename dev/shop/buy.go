package shop

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// firstSale is above the ids of all orders that the shop is made with.
const firstSale = 1_000_000_000

// Buy lets a customer order something now, once: who has bought here already
// has that order still, and is answered when it was.
func (s Shop) Buy(ctx context.Context, customer int64) (placedAt time.Time, err error) {
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		return placedAt, fmt.Errorf("reach the shop's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `insert into orders (id, customer_id, total, placed_at) values ($1, $2, 19.90, now()) on conflict do nothing`,
		firstSale+customer, customer); err != nil {
		return placedAt, fmt.Errorf("customer %d buys: %w", customer, err)
	}
	if err := conn.QueryRow(ctx, `select placed_at from orders where id = $1`, firstSale+customer).Scan(&placedAt); err != nil {
		return placedAt, fmt.Errorf("customer %d has bought: %w", customer, err)
	}
	return placedAt, nil
}
