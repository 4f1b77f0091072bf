package blobs

import "lemma/clock"

// Repairs returns the repair of the leases of attempts.
func (b *Blobs) Repairs() []clock.Repair {
	return []clock.Repair{clock.Update(b.Pool, "blobs", `
		update blobs set lease_until = now() + $1::interval where status = 'registered' and lease_until > now() + 2 * $1::interval`,
		Lease+clock.Slack)}
}
