package notifications

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Engagement is what recipients did after messages, without what machines did.
// Package tracking counts it.
type Engagement struct {
	Opens         int64 `json:"opens"`
	UniqueOpens   int64 `json:"unique_opens"` // notifications that were opened
	Clicks        int64 `json:"clicks"`
	UniqueClicks  int64 `json:"unique_clicks"` // notifications in which a link was clicked
	MachineOpens  int64 `json:"machine_opens"`
	MachineClicks int64 `json:"machine_clicks"`
	Conversions   int64 `json:"conversions"`  // notifications after which the conversion's event came in time
	Unsubscribes  int64 `json:"unsubscribes"` // notifications by which recipients unsubscribed
}

// EngagementSums adds up rows of engagement_counts e to an Engagement.
const EngagementSums = `jsonb_build_object(
	'opens', coalesce(sum(e.opens), 0), 'unique_opens', coalesce(sum(e.unique_opens), 0),
	'clicks', coalesce(sum(e.clicks), 0), 'unique_clicks', coalesce(sum(e.unique_clicks), 0),
	'machine_opens', coalesce(sum(e.machine_opens), 0), 'machine_clicks', coalesce(sum(e.machine_clicks), 0),
	'conversions', coalesce(sum(e.conversions), 0), 'unsubscribes', coalesce(sum(e.unsubscribes), 0))`

type engagementLine struct {
	OccurredAt time.Time
	Type       string
	Link       int
	Times      int
	Machine    *string
}

// readEngagement adds opens and clicks, the first mostEngagement of them.
func readEngagement(ctx context.Context, db DB, e *Explanation, _ *deliveries) error {
	n := e.Notification
	rows, _ := db.Query(ctx, `
		select occurred_at, type, link, times, machine from tracking_events
		where workspace_id = $1 and origin_id = $2 and key = $3 and type <> 'probed' order by id limit $4`,
		n.WorkspaceID, n.OriginID, n.Key, mostEngagement)
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByName[engagementLine])
	if err != nil {
		return err
	}
	for _, l := range lines {
		s := Step{At: l.OccurredAt, Event: l.Type, Detail: engagementSentences[l.Type], Data: map[string]string{}}
		if l.Type == "clicked" {
			s.Data["link"] = strconv.Itoa(l.Link)
		}
		if l.Times > 1 {
			s.Data["times"] = strconv.Itoa(l.Times)
			s.Detail += "; it stands for requests that are not shown one by one"
		}
		if l.Machine != nil {
			s.Data["machine"] = *l.Machine
		}
		e.Steps = append(e.Steps, s)
	}
	return nil
}

var engagementSentences = map[string]string{
	"opened":       "the pixel of the message was loaded",
	"clicked":      "a link of the message was followed",
	"converted":    "the event of the conversion occurred in time",
	"unsubscribed": "the recipient unsubscribed by means of the message",
}

// mostEngagement bounds an explanation: a link can be followed any number of times.
const mostEngagement = 200
