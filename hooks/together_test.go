package hooks

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/events"
	"lemma/pgtest"
)

// Requests that arrive together have more reports than one statement stores. Each gets its
// own results.
func TestManyReportsAreStoredByBoundedStatements(t *testing.T) {
	t.Parallel()
	b := newBundle(pgtest.NewShop(t))
	h := b.hooks()
	requests := make([][]events.Received, 3)
	for i := range requests {
		for j := range atOnce - 1 {
			notification := ""
			if i == 1 && j == 5 {
				notification = b.notification(3)
			}
			requests[i] = append(requests[i], events.Received{ProviderID: b.provider, Report: events.Report{ID: fmt.Sprint(i, "-", j),
				Type: events.TypeDelivered, Notification: notification}})
		}
	}
	var statements atomic.Int32
	h.pool = b.Connect(func(c *pgxpool.Config) { c.ConnConfig.Tracer = counting{&statements} })
	done, err := h.store(t.Context(), b.Workspace, requests)
	b.Must(err)
	for i := range requests {
		for j, one := range done[i] {
			if !one.New || one.Matched != (i == 1 && j == 5) {
				t.Fatalf("report %d of request %d: %+v", j, i, one)
			}
		}
	}
	b.WantCount(3*(atOnce-1), `select count(*) from provider_events`)
	if n := statements.Load(); n != 3 {
		t.Errorf("%d statements", n)
	}
}

// counting counts the statements that record reports.
type counting struct{ n *atomic.Int32 }

func (c counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "insert into provider_events") {
		c.n.Add(1)
	}
	return ctx
}

func (counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
