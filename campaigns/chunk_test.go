package campaigns

import (
	"testing"

	"lemma/message"
)

// A fan-out holds a few chunks, so a chunk ends by its bytes as well.
func TestAChunkEndsByItsBytes(t *testing.T) {
	b := setup(t, 100, func(c *Config) { c.ChunkBytes = 10_000 })
	b.ExecDB(`update customers set name = repeat('x', 1000)`)
	id := b.sent().ID
	b.fanout(id)
	var chunks, rows, most int
	b.Must(b.Pool.QueryRow(t.Context(), `select count(*), sum(created), max(created) from fanout_chunks where workspace_id = $1`, b.Workspace).
		Scan(&chunks, &rows, &most))
	if rows != 100 || most != 10 {
		t.Errorf("%d chunks have %d recipients, and one has %d", chunks, rows, most)
	}
}

// The data of a row that cannot be rendered, since it is too large, is not stored.
func TestDataThatIsTooLargeIsNotStored(t *testing.T) {
	b := setup(t, 3)
	b.ExecDB(`update customers set name = repeat('x', case id when '1' then $1 else $1 - 11 end)`, message.MaxPayload)
	id := b.sent().ID
	b.fanout(id)
	var stored, marked int
	b.Must(b.Pool.QueryRow(t.Context(), `
		select count(*) filter (where length(payload) = $2), count(*) filter (where length(payload) < 20)
		from notifications where workspace_id = $1 and skip_reason is null`, b.Workspace, message.MaxPayload).Scan(&stored, &marked))
	if stored != 2 || marked != 1 {
		t.Errorf("%d are stored as they are, %d without their data", stored, marked)
	}
}
