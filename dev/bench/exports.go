package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"lemma"
	"lemma/blobs"
	"lemma/exports"
	"lemma/exports/format"
	"lemma/suppression"
)

// export writes rows to files in a folder: suppressions, events and attempts as CSV, and
// notifications, whose status is computed, in each format. Memory is the peak of this
// process.
func (b *benchmarks) export(ctx context.Context, e *env, print func(figure) error) error {
	process, err := e.fresh(ctx)
	if err != nil {
		return err
	}
	defer process.drop()
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
	if err := process.seedRows(ctx, e, n); err != nil {
		return err
	}
	x := exports.New(exports.Deps{Pool: process.Pool, Links: process.Links, Blobs: blobs.New(blobs.Deps{Pool: process.Pool, Store: store})},
		exports.Config{})
	for _, of := range [][2]string{{"suppressions", format.CSV}, {"events", format.CSV}, {"attempts", format.CSV},
		{"notifications", format.CSV}, {"notifications", format.NDJSON}, {"notifications", format.Parquet}} {
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

// seedRows stores n suppressions, n events, and n notifications that were sent. Those have
// no statistics, as in a new installation.
func (b *instance) seedRows(ctx context.Context, e *env, n int) error {
	if err := suppression.New(b.Pool).Seed(ctx, b.workspace, n); err != nil {
		return err
	}
	if err := b.Flows.Intake.SeedEvents(ctx, b.workspace, "bought", n, time.Hour); err != nil {
		return err
	}
	return e.fillFinished(ctx, b, n)
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
