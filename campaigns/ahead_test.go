package campaigns

import (
	"testing"
	"time"
)

func (b *bundle) repair() (rows int64) {
	b.T.Helper()
	for _, r := range b.Repairs() {
		n, err := r.Run(b.T.Context())
		b.Must(err)
		rows += n
	}
	return rows
}

// aheadCase sets times of the rows of a table, of which so many are to be repaired.
type aheadCase struct {
	what, table, set, want string
	rows                   int64
}

// repairs runs the repairs for each case, after which every row of the table is as wanted.
func (b *bundle) repairs(all []aheadCase) {
	b.T.Helper()
	for _, c := range all {
		b.Exec(`update ` + c.table + ` set ` + c.set)
		if n := b.repair(); n != c.rows {
			b.T.Errorf("%s: %d rows are repaired, want %d", c.what, n, c.rows)
		}
		b.WantCount(0, `select count(*) from `+c.table+` where (`+c.want+`) is not true`)
	}
}

// Times of campaigns and fan-outs that are further ahead than any that Lemma sets by the
// present clock are repaired, and others are kept.
func TestTimesOfCampaignsThatAreTooFarAheadAreRepaired(t *testing.T) {
	b := setup(t, 10, func(c *Config) { c.RetryFor = time.Second })
	b.sent()
	b.repairs([]aheadCase{
		{"a retry, soon", "fanouts", `retry_at = now() + interval '1 minute'`, `retry_at > now() + interval '30 seconds'`, 0},
		{"a retry", "fanouts", `retry_at = now() + interval '1 day'`, `retry_at <= now()`, 1},
		{"a lease", "fanouts", `leased_by = 'x', lease_until = now() + interval '1 day'`,
			`lease_until between now() + interval '1 minute' and now() + interval '2 minutes' and leased_by = 'x'`, 1},
		{"a resume", "campaigns", `resumed_at = now() + interval '1 day'`, `resumed_at <= now()`, 1},
		{"a check", "campaigns", `status = 'sending', settle_at = now() + interval '1 day'`, `settle_at <= now()`, 1},
		{"a check of a paused campaign", "campaigns", `status = 'paused', settle_at = now() + interval '1 hour'`,
			`settle_at > now() + interval '50 minutes'`, 0},
	})
}

// Times of evaluations are repaired, and those that follow from the length of an experiment are
// kept.
func TestTimesOfExperimentsThatAreTooFarAheadAreRepaired(t *testing.T) {
	b := experiments(t, 10, func(c *Config) { c.RetryFor = time.Second })
	b.sampled(ab())
	b.repairs([]aheadCase{
		{"a measurement", "iterations", `status = 'running', cut_off_at = started_at + interval '1 day', measure_at = now() + interval '1 day'`,
			`measure_at <= now()`, 1},
		{"a measurement of a long experiment", "iterations", `cut_off_at = started_at + interval '50 days',
			measure_at = now() + interval '1 day'`, `measure_at > now() + interval '23 hours'`, 0},
		{"the check of its campaign", "campaigns", `status = 'sending', settle_at = (select cut_off_at from iterations)`,
			`settle_at > now() + interval '1 day'`, 0},
		{"a retry, soon", "iterations", `status = 'evaluating', retry_at = now() + interval '80 seconds'`,
			`retry_at > now() + interval '50 seconds'`, 0},
		{"a retry", "iterations", `retry_at = now() + interval '1 day'`, `retry_at <= now()`, 1},
		{"a claim", "iterations", `evaluating_by = id, evaluating_until = now() + interval '1 day'`,
			`evaluating_until between now() + interval '1 minute' and now() + interval '3 minutes'`, 1},
	})
}
