package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lemma/links"
	"lemma/secrets"
	"lemma/server"
)

// deleteLinkKeysCommand is for a secret key that is lost. Nobody can enter a link key again,
// so those that it has encrypted are deleted, and new ones are made.
type deleteLinkKeysCommand struct {
	Confirm bool `help:"Delete them. Without it they are only counted."`
}

func (d deleteLinkKeysCommand) run(ctx context.Context, c Config, out io.Writer) error {
	box, err := c.box()
	if err != nil {
		return err
	}
	pool, err := server.OpenMigrated(ctx, c.server())
	if err != nil {
		return err
	}
	defer pool.Close()
	keys := links.New(pool, box, nil)
	found, err := box.Inspect(ctx, keys.Sealed())
	if err != nil {
		return err
	}
	lost := len(found.Unreadable)
	if lost == 0 {
		fmt.Fprintf(out, "All %d link keys are readable. Nothing is deleted.\n", found.Rows)
		return nil
	}
	if !d.Confirm {
		fmt.Fprintf(out, "%d of %d link keys are unreadable with every key (%s).\n", lost, found.Rows, named(keys.Sealed(), found.Unreadable))
		fmt.Fprintln(out, "Nothing is deleted. With --confirm they are: the links that they signed are then answered with 404, for ever.")
		return nil
	}
	if err := proveKey(ctx, box, stores(pool, box)); err != nil {
		return err
	}
	n, err := keys.Delete(ctx, found.Unreadable)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d link keys are deleted, %d are left. Each workspace makes a new one when it needs it.\n", n, found.Rows-n)
	return nil
}

// proveKey fails if LEMMA_SECRET_KEY opens nothing that is stored: it is then perhaps a wrong
// one, and no key is lost.
func proveKey(ctx context.Context, box *secrets.Box, all []secrets.Store) error {
	others := 0
	for _, s := range all {
		r, err := box.Inspect(ctx, s)
		if err != nil {
			return err
		}
		if len(r.Unreadable) < r.Rows {
			return nil
		}
		if s.Table != "link_keys" {
			others += r.Rows
		}
	}
	if others == 0 {
		return nil // nothing else can be entered again
	}
	return errors.New("LEMMA_SECRET_KEY opens no secret at all: check that it is the key of the servers. If it is, enter the secret of " +
		"a data source or provider again first")
}
