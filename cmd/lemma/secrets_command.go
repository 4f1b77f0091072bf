package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/links"
	"lemma/providers"
	"lemma/secrets"
	"lemma/server"
	"lemma/webhooks"
)

// secretsCommand is for a change of LEMMA_SECRET_KEY, and for its loss.
type secretsCommand struct {
	Reseal         resealCommand         `cmd:"" help:"Encrypt all secrets with the first key of LEMMA_SECRET_KEY."`
	DeleteLinkKeys deleteLinkKeysCommand `cmd:"" help:"Delete link keys that open with no key of LEMMA_SECRET_KEY, so that new ones are made."`
}

type resealCommand struct{}

// resealPasses bounds how often changed rows are read again.
const resealPasses = 3

// stores are all columns with encrypted texts. The architecture test checks that no
// package is missing.
func stores(pool *pgxpool.Pool, box *secrets.Box) []secrets.Store {
	return []secrets.Store{audience.New(pool, box, audience.Options{}).Sealed(), providers.New(pool, box, nil).Sealed(),
		webhooks.New(webhooks.Deps{Pool: pool, Box: box}, webhooks.Options{}).Sealed(), links.New(pool, box, nil).Sealed()}
}

func (resealCommand) run(ctx context.Context, c Config, out io.Writer) error {
	box, err := c.box()
	if err != nil {
		return err
	}
	pool, err := server.OpenMigrated(ctx, c.server())
	if err != nil {
		return err
	}
	defer pool.Close()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TABLE\tROWS\tRESEALED\tCURRENT\tCHANGED\tUNREADABLE")
	left := 0
	for _, s := range stores(pool, box) {
		r, err := reseal(ctx, box, s)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\n", s.Table, r.Rows, r.Resealed, r.Current, r.Changed, named(s, r.Unreadable))
		left += len(r.Unreadable) + r.Changed
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%d rows are not encrypted with the first key: keep the other keys", left)
	}
	fmt.Fprintln(out, "All secrets are encrypted with the first key.")
	return nil
}

// reseal repeats the pass while rows are changed by others. Rows that an earlier pass
// has encrypted count as resealed.
func reseal(ctx context.Context, box *secrets.Box, s secrets.Store) (secrets.Report, error) {
	before := 0
	for pass := 1; ; pass++ {
		r, err := box.ResealAll(ctx, s)
		if err != nil || r.Changed == 0 || pass == resealPasses {
			r.Resealed, r.Current = r.Resealed+before, r.Current-before
			return r, err
		}
		before += r.Resealed
	}
}

// named returns the number of rows and the ids of the first ones.
func named(s secrets.Store, rows []secrets.Sealed) string {
	const most = 5
	if len(rows) == 0 {
		return "0"
	}
	var ids []string
	for _, row := range rows[:min(len(rows), most)] {
		ids = append(ids, lemma.FormatID(s.Prefix, row.ID))
	}
	text := fmt.Sprintf("%d: %s", len(rows), strings.Join(ids, ", "))
	if len(rows) > most {
		text += ", ..."
	}
	return text
}
