package suppression_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgtest"
	"lemma/suppression"
)

// items are the suppressions that events of the workspace name, each with the cause that its event has.
func (f fixture) items(t *testing.T) (all []string) {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), `
		select s.address || ' ' || e.details[n] from events_out e
		cross join generate_series(1, e.count) n
		join suppressions s on s.workspace_id = e.workspace_id and uuid_send(s.id) = substring(e.keys from 16 * n - 15 for 16)
		where e.workspace_id = $1 and e.type = 'suppression.added' and length(e.keys) = 16 * e.count
		order by 1`, f.ws)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each way that adds a suppression has an event about it, and only the first time.
func TestSuppressionsHaveEvents(t *testing.T) {
	f := setup(t)
	email := func(address, cause string) suppression.Entry {
		return suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: address, Cause: cause}
	}
	in := func(do func(tx pgx.Tx) error) {
		t.Helper()
		if err := pgx.BeginFunc(t.Context(), f.pool, do); err != nil {
			t.Fatal(err)
		}
	}
	f.add(t, "before@shop.example", suppression.Manual) // nobody subscribes yet
	pgtest.Subscribe(t, f.pool, f.ws, "suppression.added")
	topic, err := f.CreateTopic(t.Context(), f.ws, suppression.NewTopic{ID: lemma.NewID(), Name: "News"})
	if err != nil {
		t.Fatal(err)
	}
	reader := suppression.NewRecipient(lemma.Email, suppression.KeyOf(lemma.Email, "cy@shop.example"), "cy@shop.example")
	for range 2 {
		f.add(t, "ann@shop.example", suppression.Manual)
		f.add(t, "before@shop.example", suppression.Manual)
		_, err := f.Import(t.Context(), f.ws, strings.NewReader("address,cause\nbo@shop.example,complaint\nann@shop.example,\n"),
			suppression.Defaults{Channel: lemma.Email, Cause: suppression.Manual})
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range []uuid.UUID{topic.ID, uuid.Nil} {
			in(func(tx pgx.Tx) error {
				_, err := suppression.Unsubscribe(t.Context(), tx, f.ws, reader, of, "")
				return err
			})
		}
		in(func(tx pgx.Tx) error {
			_, err := suppression.Record(t.Context(), tx, f.ws, []suppression.Entry{
				email("bo@shop.example", suppression.HardBounce), {Channel: lemma.SMS, Address: "+4915123456789", Cause: suppression.Unsubscribed}})
			return err
		})
		in(func(tx pgx.Tx) error {
			var all []suppression.Delivery
			for range suppression.SoftBounceLimit {
				all = append(all, suppression.Delivery{Channel: lemma.Email, Address: "di@shop.example", Origin: lemma.NewID(), Key: lemma.NewID(),
					At: time.Now()})
			}
			_, err := suppression.RecordDeliveries(t.Context(), tx, f.ws, all)
			return err
		})
	}
	want := []string{"+4915123456789 unsubscribed", "ann@shop.example manual", "bo@shop.example complaint", "bo@shop.example hard_bounce",
		"cy@shop.example unsubscribed", "di@shop.example soft_bounces"}
	if diff := cmp.Diff(want, f.items(t)); diff != "" {
		t.Error(diff)
	}
}
