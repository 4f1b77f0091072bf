package sender

import (
	"github.com/google/uuid"

	"lemma"
)

// split is a batch of the rows whose outcome is unknown. It is leased without a
// holder: when the lease has expired, the reaper decides. The other rows do not wait
// for that.
type split struct {
	id   uuid.UUID
	rows []int16
}

func (c *claim) split() *split {
	if len(c.unknown) == 0 {
		return nil
	}
	return &split{lemma.NewID(), c.unknown}
}

// commitSplit also moves rows into a batch of their own. It copies what the update
// returned, since a snapshot from before its lock may be older.
var commitSplit = named(commitText + `, split as (
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts,
			status, gate, expires_at, leased_by, lease_until, called_through, calling, open, members, refusals, resumed_at)
		select workspace_id, origin_id, @split_id, root_id, provider_id, content_id, @split_size, attempt, max_attempts,
			'leased', gate, expires_at, @token, now() + @lease, (@split_rows::smallint[])[@split_size], @split_size,
			@split_rows, @split_rows, refusals, resumed_at
		from b
		returning workspace_id, id, leased_by, lease_until
	), split_log as (
		insert into batch_log (workspace_id, batch_id, event, token, until)
		select workspace_id, id, 'unresolved', leased_by, lease_until from split
	)` + commitResult)
