package notifications

// Engagement is what recipients did with messages, without what machines did.
// Package tracking counts it.
type Engagement struct {
	Opens         int64 `json:"opens"`
	UniqueOpens   int64 `json:"unique_opens"` // notifications that were opened
	Clicks        int64 `json:"clicks"`
	UniqueClicks  int64 `json:"unique_clicks"` // notifications in which a link was clicked
	MachineOpens  int64 `json:"machine_opens"`
	MachineClicks int64 `json:"machine_clicks"`
}

// EngagementSums adds up rows of engagement_counts e to an Engagement.
const EngagementSums = `jsonb_build_object(
	'opens', coalesce(sum(e.opens), 0), 'unique_opens', coalesce(sum(e.unique_opens), 0),
	'clicks', coalesce(sum(e.clicks), 0), 'unique_clicks', coalesce(sum(e.unique_clicks), 0),
	'machine_opens', coalesce(sum(e.machine_opens), 0), 'machine_clicks', coalesce(sum(e.machine_clicks), 0))`
