package campaigns

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"lemma/audience"
	"lemma/notifications"
)

// sampleSize is how many messages a rehearsal renders.
const sampleSize = 3

// errEnough ends a stream from which enough rows were read.
var errEnough = errors.New("enough rows")

// Rehearse finds out what a send would do now, without a side effect: it
// counts the audience by what would become of each row, and renders the first
// messages.
func (c *Campaigns) Rehearse(ctx context.Context, workspaceID, id uuid.UUID) (Rehearsal, error) {
	now, err := c.Get(ctx, workspaceID, id)
	if err != nil {
		return Rehearsal{}, err
	}
	content, err := c.content(ctx, now)
	if err != nil {
		return Rehearsal{}, err
	}
	counts, err := c.audiences.Count(ctx, workspaceID, now.AudienceID)
	if err != nil {
		return Rehearsal{}, err
	}
	r := Rehearsal{Rows: counts.Rows, Sendable: counts.Sendable, SkippedBy: map[string]int64{}, Sample: []Rendered{}}
	for reason, n := range map[string]int64{
		notifications.MissingAddress: counts.MissingAddress, notifications.InvalidAddress: counts.InvalidAddress,
		notifications.DuplicateAddress: counts.DuplicateAddress, notifications.Unsubscribed: counts.Unsubscribed, notifications.InvalidKey: counts.InvalidKey,
	} {
		if n > 0 {
			r.SkippedBy[reason] = n
		}
	}
	r.Sample, err = c.sample(ctx, now, content)
	return r, err
}

func (c *Campaigns) sample(ctx context.Context, now Campaign, content *content) ([]Rendered, error) {
	sample := []Rendered{}
	_, err := c.audiences.Stream(ctx, now.WorkspaceID, now.AudienceID, content.columns, func(row audience.Row) error {
		r := recipient(now.ID, row)
		if r.Skip != "" {
			return nil
		}
		one := Rendered{ProfileKey: r.ProfileKey, Address: r.Address}
		text, headers, err := content.render(r.Payload)
		if err != nil {
			one.Error = err.Error()
		}
		one.Subject, one.HTML, one.Text, one.Headers = text.Subject, text.HTML, text.Text, headers
		if sample = append(sample, one); len(sample) == sampleSize {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return sample, nil
}
