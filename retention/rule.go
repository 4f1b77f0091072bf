package retention

import (
	"context"
	"time"

	"lemma/settings"
)

// The settings of this package, as processes store them.
const (
	setNotifications  = "LEMMA_NOTIFICATION_RETENTION"
	setProviderEvents = "LEMMA_PROVIDER_EVENT_RETENTION"
	setBatchLog       = "LEMMA_BATCH_LOG_RETENTION"
	setSteps          = "LEMMA_ENROLLMENT_STEP_RETENTION"
	setArchive        = "LEMMA_ARCHIVE"
)

// rule is what holds for all processes.
type rule struct {
	Config        // with the longest retention that any process has or had
	archived bool // a process has LEMMA_ARCHIVE, or had it: nothing is dropped without a copy
}

// readRule reads the rule. With own, the settings of this process count also while they are
// not stored; without it, only if none are.
func readRule(ctx context.Context, q settings.Querier, cfg Config, own bool) (r rule, err error) {
	all, err := settings.List(ctx, q)
	if err != nil {
		return r, err
	}
	r = rule{Config: cfg}
	for name, kept := range map[string]*time.Duration{setNotifications: &r.Notifications, setProviderEvents: &r.ProviderEvents,
		setBatchLog: &r.BatchLog, setSteps: &r.Steps} {
		longest, d, err := settings.Longest(all, name)
		switch {
		case err != nil:
			return r, err
		case longest == nil:
		case *kept == 0 && own:
		case d == 0 || !own:
			*kept = d
		default:
			*kept = max(*kept, d)
		}
	}
	for _, s := range settings.Of(all, setArchive) {
		r.archived = r.archived || s.Value == "true"
	}
	return r, nil
}

// leaves reports whether this process must leave the partitions to one that archives.
func (r rule) leaves() bool { return r.archived && r.Archive == nil }
