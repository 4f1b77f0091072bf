package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"lemma/archive"
	"lemma/blobs"
	"lemma/server"
)

type archiveCommand struct {
	List archiveListCommand `cmd:"" help:"List archived partitions, the oldest month first."`
	Read archiveReadCommand `cmd:"" help:"Print the rows of an archived partition as CSV, which COPY of Postgres reads."`
}

type archiveListCommand struct{}

func (archiveListCommand) run(ctx context.Context, c Config, out io.Writer) error {
	return withArchive(ctx, c, func(a *archive.Archive) error {
		all, err := a.List(ctx)
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "PARTITION\tNUMBER\tTABLE\tMONTH\tROWS\tBYTES\tARCHIVED")
		for _, e := range all {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%d\t%s\n", e.Partition, e.Number, e.Table, e.Month.Format("2006-01"), e.RowCount, e.Bytes,
				orNever(&e.StoredAt))
		}
		return t.Flush()
	})
}

type archiveReadCommand struct {
	Partition string `arg:"" help:"The partition, such as batch_log_2026_01."`
	Number    int    `help:"Which of several archives of the partition."`
}

func (r archiveReadCommand) run(ctx context.Context, c Config, out io.Writer) error {
	return withArchive(ctx, c, func(a *archive.Archive) error { return a.Read(ctx, r.Partition, r.Number, out) })
}

func withArchive(ctx context.Context, c Config, f func(*archive.Archive) error) error {
	store, err := c.blobs()
	if err != nil {
		return err
	}
	if store == nil {
		return errors.New("LEMMA_BLOBS is not set: it names where archives are kept")
	}
	pool, err := server.OpenMigrated(ctx, c.server())
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(archive.New(pool, blobs.New(blobs.Deps{Pool: pool, Store: store, At: blobs.Location(c.Blobs)})))
}
