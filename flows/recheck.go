package flows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
)

// Recheck yields the current audience rows of some profiles, for notifications of a send
// node that have waited for long. found is false when the content
// belongs to no flow, or its version reads no audience. A deleted audience has no rows. It
// keeps to the limits that a data source has for enrollments. While the audience cannot be
// read, the counts of the version show why its messages wait.
func (f *Flows) Recheck(ctx context.Context, ws, content uuid.UUID, profiles []string, yield func(audience.Row) error) (
	found bool, err error,
) {
	v, id, found, err := f.audienceOf(ctx, ws, content)
	if err != nil || !found {
		return false, err
	}
	a, err := f.audiences.Get(ctx, ws, id)
	if lemma.KindOf(err) == lemma.NotFound {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	err = f.Execution.Sources.Query(ctx, a.DataSourceID, func() error {
		for some := range slices.Chunk(profiles, audience.MaxLookup) {
			if err := f.audiences.CurrentEach(ctx, ws, id, some, yield); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return true, errors.Join(err, f.recheckFailed(v, err))
	}
	return true, f.rechecked(ctx, v)
}

// versionRef names one version of a flow.
type versionRef struct {
	ws, flow uuid.UUID
	version  int
}

// recheckFailed records why messages of a version wait. The first failure of a kind is
// kept. A source without a free slot, and internal errors, are not recorded.
func (f *Flows) recheckFailed(v versionRef, cause error) error {
	reason := execution.BlockedReason(cause)
	if lemma.KindOf(cause) == lemma.Internal || reason == admission.CodeSourceBusy {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // also after the sender's timeout
	defer cancel()
	_, err := f.pool.Exec(ctx, `
		update flow_versions set recheck_failed_at = coalesce(recheck_failed_at, now()), recheck_reason = $4, recheck_detail = $5
		where workspace_id = $1 and flow_id = $2 and version = $3 and recheck_reason is distinct from $4`,
		v.ws, v.flow, v.version, reason, lemma.Public(cause))
	return lemma.Wrap(err, "record why messages of flow %s wait", v.flow)
}

// rechecked deletes the reason when the audience could be read.
func (f *Flows) rechecked(ctx context.Context, v versionRef) error {
	_, err := f.pool.Exec(ctx, `
		update flow_versions set recheck_failed_at = null, recheck_reason = null, recheck_detail = null
		where workspace_id = $1 and flow_id = $2 and version = $3 and recheck_failed_at is not null`, v.ws, v.flow, v.version)
	return lemma.Wrap(err, "record that messages of flow %s are sent again", v.flow)
}

// audienceOf finds the version that a content belongs to, and its audience: the content's
// id is made of the flow, the version and the node.
func (f *Flows) audienceOf(ctx context.Context, ws, content uuid.UUID) (v versionRef, id uuid.UUID, found bool, err error) {
	var flow uuid.UUID
	var node string
	var versions int
	err = f.pool.QueryRow(ctx, `
		select c.flow_id, c.node, f.versions from contents c
		join flows f on f.workspace_id = c.workspace_id and f.id = c.flow_id
		where c.workspace_id = $1 and c.id = $2`, ws, content).Scan(&flow, &node, &versions)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, id, false, nil
	}
	if err != nil {
		return v, id, false, fmt.Errorf("find flow of content %s: %w", content, err)
	}
	version := versions
	for version > 0 && enrollment.ContentID(flow, version, node) != content {
		version--
	}
	if version == 0 {
		return v, id, false, nil
	}
	g, err := f.Execution.Versions.Current(ctx, f.pool, ws, flow, version)
	if err != nil {
		return v, id, false, err
	}
	id, found = lemma.ParseID(lemma.PrefixAudience, g.Definition().AudienceID)
	return versionRef{ws, flow, version}, id, found, nil
}
