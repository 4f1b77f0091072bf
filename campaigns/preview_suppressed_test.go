package campaigns

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/suppression"
)

// A preview warns of recipients that will be skipped since they are suppressed, or have unsubscribed
// from the topic, exactly in a small audience.
func TestAPreviewWarnsOfSuppressedRecipients(t *testing.T) {
	b := setup(t, 100)
	ctx := context.Background()
	c := b.draft()
	r, err := b.Preview(ctx, b.Workspace, c.ID)
	b.Must(err)
	if len(r.Warnings) > 0 {
		t.Errorf("without suppressions: %q", r.Warnings)
	}
	var entries []suppression.Entry
	for i, row := range []string{"c1", "c2", "c3"} {
		entries = append(entries, suppression.Entry{Channel: lemma.Email, Address: row + "@shop.example",
			Cause: []string{suppression.Manual, suppression.Manual, suppression.HardBounce}[i]})
	}
	b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		_, err := suppression.Record(ctx, tx, b.Workspace, entries)
		return err
	}))
	r, err = b.Preview(ctx, b.Workspace, c.ID)
	b.Must(err)
	const want = "3 of 100 sendable recipients are suppressed, or have unsubscribed from the topic, and will be skipped"
	if !slices.Equal(r.Warnings, []string{want}) || r.Sendable != 100 {
		t.Errorf("%d sendable, %q", r.Sendable, r.Warnings)
	}
	b.Exec(`update campaigns set transactional = true`)
	r, err = b.Preview(ctx, b.Workspace, c.ID)
	b.Must(err)
	if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.HasPrefix(w, "1 of 100 ") }) {
		t.Errorf("transactional: %q", r.Warnings)
	}
	if got := suppressedWarning(1000, 5000, 500); !strings.HasPrefix(got, "about (by a sample of 500) 1000 of 5000 ") {
		t.Error(got)
	}
}
