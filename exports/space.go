package exports

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/blobs"
)

// mostKept is how many exports of a workspace are kept.
const mostKept = 10_000

// space is what the exports of a workspace use. One workspace must not fill the store of all.
type space struct {
	Open  int   // exports that wait or run
	Kept  int   // all exports
	Bytes int64 // of files that are written, published or kept
	Ended int64 // of files of cancelled, failed and deleted exports that are still in the store
}

// isUsed reports whether there is room for no other file, now or at all.
func (e *Exports) isUsed(s space) (now, always bool) {
	return s.Bytes+s.Ended >= e.cfg.Space, s.Bytes >= e.cfg.Space
}

// spaceOf reads the space of a workspace, without one export.
func (e *Exports) spaceOf(ctx context.Context, tx pgx.Tx, ws, except uuid.UUID) (s space, err error) {
	err = tx.QueryRow(ctx, `
		select count(*) filter (where status in ('queued', 'running', 'publishing')), count(*),
			coalesce(sum(byte_count) filter (where status in ('running', 'publishing', 'completed')), 0)::bigint
		from exports where workspace_id = $1 and id <> $2`, ws, except).Scan(&s.Open, &s.Kept, &s.Bytes)
	if err == nil {
		s.Ended, err = e.Blobs.Uncleaned(ctx, tx, ws)
	}
	return s, lemma.Wrap(err, "measure the exports of a workspace")
}

// refusal is why a workspace with this space creates no further export, nil if it may.
func (e *Exports) refusal(s space) error {
	used, always := e.isUsed(s)
	switch {
	case s.Open >= mostOpen:
		return tooMany("%d exports of the workspace wait or run; wait until one has ended, or cancel one", mostOpen)
	case s.Kept >= mostKept:
		return tooMany("the workspace has %d exports; delete some", mostKept)
	case always:
		return &lemma.Error{Kind: lemma.Conflict, Code: "export_space_used", Message: e.spaceDetail() + "; delete some"}
	case used:
		return &lemma.Error{Kind: lemma.Conflict, Code: "export_space_used",
			Message: e.spaceDetail() + " with those that were deleted; these are removed within a minute or two"}
	}
	return nil
}

func tooMany(message string, most int) error {
	return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_exports", Message: fmt.Sprintf(message, most)}
}

// spaceUsed is the reason of an export that failed since its workspace has no space for it.
const spaceUsed = "export_space_used"

func (e *Exports) spaceDetail() string {
	return fmt.Sprintf("the files of the workspace's exports have %d MiB or more", e.cfg.Space>>20)
}

// awaitCleaning lets an export wait until the files of those that were deleted are removed from the store.
func awaitCleaning(ctx context.Context, tx pgx.Tx, o blobs.Owner) error {
	_, err := tx.Exec(ctx, `update exports set retry_at = now() + interval '30 seconds' where workspace_id = $1 and id = $2`,
		o.Workspace, o.ID)
	return err
}
