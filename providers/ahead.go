package providers

import "lemma/clock"

// Repairs returns the repair of the meters of tests, which are at most testBurst and
// testEvery ahead.
func (p *Providers) Repairs() []clock.Repair {
	return []clock.Repair{clock.Update(p.pool, "provider_test_meters", `
		update provider_test_meters set next_free_at = now() where next_free_at > now() + $1::interval`,
		testBurst+testEvery+clock.Slack)}
}
