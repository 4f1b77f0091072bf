package sender

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// A direct notification has a queue and slots of its own: it is sent while the batches of a
// campaign have all others, and its job is not among theirs.
func TestDirectNotificationsHaveTheirOwnSlots(t *testing.T) {
	b := setup(t)
	s := b.sender()
	for range s.cfg.Workers {
		s.slots.hold(b.Workspace, b.provider)
	}
	origin := notifications.DirectOrigin(b.Workspace, time.Now())
	b.Must(pgx.BeginFunc(context.Background(), b.Pool, func(tx pgx.Tx) error {
		_, err := b.ledger.InsertDirect(context.Background(), tx, b.Workspace, []notifications.Direct{{OriginID: origin, Key: lemma.NewID(),
			ProviderID: b.provider, ContentID: b.origin, ProfileKey: "ada", Address: "ada@shop.example", Payload: `{"name":"Ada"}`, MaxAttempts: 1}})
		return err
	}))
	b.WantCount(1, `select count(*) from river_job where queue = $1`, notifications.QueueDirect)
	rows, err := b.Pool.Query(context.Background(), `select workspace_id, origin_id, id from batches where origin_id = $1`, origin)
	b.Must(err)
	ref, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[notifications.Ref])
	b.Must(err)
	if again, err := s.Work(context.Background(), ref); again != 0 || err != nil {
		t.Fatalf("it waits for %s, %v", again, err)
	}
	if b.carrier.called("ada@shop.example") != 1 {
		t.Error("it was not sent")
	}
	campaign := ref
	campaign.OriginID = b.origin
	if p := s.acquireNow(context.Background(), campaign); p != nil {
		t.Error("a campaign has a slot of direct notifications")
	}
}
