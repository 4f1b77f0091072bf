package bench

import (
	"context"
	"fmt"
	"os"

	"lemma"
	"lemma/blobs"
	"lemma/exports"
	"lemma/exports/format"
	"lemma/suppression"
)

// export writes rows to files in a folder: attempts and suppressions as CSV, and
// notifications, whose status is computed, in each format. Memory is the peak of this
// process.
func (b *benchmarks) export(ctx context.Context, e *env, print func(figure) error) error {
	process, err := e.fresh(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = e.drop(context.WithoutCancel(ctx), process) }()
	dir, err := os.MkdirTemp("", "lemma-exports-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, err := blobs.OpenFolder(dir)
	if err != nil {
		return err
	}
	n := b.n(1_000_000)
	if err := process.seedRows(ctx, n); err != nil {
		return err
	}
	x := exports.New(exports.Deps{Pool: process.Pool, Links: process.Links, Blobs: blobs.New(blobs.Deps{Pool: process.Pool, Store: store})},
		exports.Config{})
	for _, of := range [][2]string{{"suppressions", format.CSV}, {"attempts", format.CSV}, {"notifications", format.CSV},
		{"notifications", format.NDJSON}, {"notifications", format.Parquet}} {
		f, err := process.exportOne(ctx, e, x, of[0], of[1], n)
		if err != nil {
			return err
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// seedRows stores n suppressions, and n notifications that were sent.
func (b *instance) seedRows(ctx context.Context, n int) error {
	if err := suppression.New(b.Pool).Seed(ctx, b.workspace, n); err != nil {
		return err
	}
	batches, err := b.Ledger.SeedSent(ctx, b.workspace, lemma.NewID(), n)
	if err != nil {
		return err
	}
	if err := b.Sender.SeedAttempts(ctx, b.workspace, batches); err != nil {
		return err
	}
	for _, sql := range []string{"vacuum analyze", "checkpoint"} {
		if _, err := b.Pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func (b *instance) exportOne(ctx context.Context, e *env, x *exports.Exports, kind, as string, n int) (figure, error) {
	made, err := x.Create(ctx, b.workspace, exports.NewExport{ID: lemma.NewID(), Type: kind, Format: as})
	if err != nil {
		return figure{}, err
	}
	m := startMeter(e.postmaster())
	if _, err := x.RunOnce(ctx); err != nil {
		return figure{}, err
	}
	f := m.stop("export_"+kind+"_"+as, n)
	done, err := x.Get(ctx, b.workspace, made.ID)
	if err != nil {
		return figure{}, err
	}
	if done.Status != exports.Completed {
		return figure{}, fmt.Errorf("the export of %s is %s", kind, done.Status)
	}
	f.Missing = n - int(done.RowCount)
	return f, x.Delete(ctx, b.workspace, made.ID)
}
