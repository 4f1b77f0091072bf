package notifications_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
)

// fixture is a workspace with one origin. Outcomes are written by SQL, as package
// sender would.
type fixture struct {
	*notifications.Ledger
	pgtest.Shop
	origin uuid.UUID
}

func setup(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	s := pgtest.NewShop(t)
	return &fixture{Ledger: notifications.New(s.Pool), Shop: s, origin: lemma.NewID()}
}

func keyOf(i int) uuid.UUID { return lemma.Key("test/1", address(i)) }

func address(i int) string { return fmt.Sprintf("p%d@shop.example", i) }

func recipient(i int) notifications.Recipient {
	return notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: address(i), Payload: `{}`}
}

func recipients(n int) []notifications.Recipient {
	all := make([]notifications.Recipient, n)
	for i := range all {
		all[i] = recipient(i)
	}
	return all
}

// insert inserts recipients in batches of 10.
func (f *fixture) insert(recipients []notifications.Recipient, change ...func(*notifications.Chunk)) (w notifications.Written) {
	f.T.Helper()
	chunk := notifications.Chunk{WorkspaceID: f.Workspace, OriginID: f.origin, ProviderID: f.origin, ContentID: f.origin,
		Run: 1, MaxAttempts: 2, BatchSize: 10, Recipients: recipients}
	for _, c := range change {
		c(&chunk)
	}
	f.inTx(func(tx pgx.Tx) (err error) { w, err = f.Insert(f.T.Context(), tx, chunk); return err })
	return w
}

// content writes the content of an origin.
func (f *fixture) content(origin uuid.UUID, channel lemma.Channel) {
	f.T.Helper()
	f.Exec(`insert into templates (workspace_id, id, name, channel) values ($1, $2, $4, $3)`, f.Workspace, origin, channel, origin.String())
	f.Exec(`
		insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		values ($1, $2, 1, '', '', 't', '{}')`, f.Workspace, origin)
	f.Exec(`
		insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
		values ($1, $2, $3, $2, 1, '', '', '', '{}')`, f.Workspace, origin, channel)
}

func (f *fixture) inTx(do func(pgx.Tx) error) {
	f.T.Helper()
	f.Must(pgx.BeginFunc(context.Background(), f.Pool, do))
}

// end writes the outcome of a recipient's first attempt, and counts it.
func (f *fixture) end(i int, outcome, basis, counter string) {
	f.T.Helper()
	f.Exec(`
		with a as (
			insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
			select workspace_id, batch_id, ordinal, 1, $4, true, $5 from notifications
			where workspace_id = $1 and origin_id = $2 and key = $3
			returning batch_id
		)
		update batches b set `+counter+` = `+counter+` + 1 from a where b.id = a.batch_id`, f.Workspace, f.origin, keyOf(i), outcome, basis)
}

func (f *fixture) orphan(i int) { f.end(i, "unknown", "reaper", "orphaned") }

func (f *fixture) get(i int) notifications.Notification {
	f.T.Helper()
	n, err := f.Get(f.T.Context(), f.Workspace, f.origin, keyOf(i))
	f.Must(err)
	return n
}

func (f *fixture) counts() notifications.Counts {
	f.T.Helper()
	c, err := f.Counts(f.T.Context(), f.Workspace, f.origin)
	f.Must(err)
	return c
}
