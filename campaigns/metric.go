package campaigns

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/message"
)

// Metric selects the recipients that have converted.
type Metric struct {
	Type         MetricType // empty: the one of the field that is given
	Event        string     // of EventMetric: a trigger event after the start
	DataSourceID uuid.UUID  // of SQLMetric, with SQL: a select on this data source, which returns profile keys
	SQL          string
}

// MetricType is what a metric counts.
type MetricType string

// The types of metrics. Opens and clicks of machines are excluded.
const (
	EventMetric  MetricType = "event"
	SQLMetric    MetricType = "sql"
	UniqueOpens  MetricType = "unique_opens"  // notifications that were opened
	UniqueClicks MetricType = "unique_clicks" // notifications in which a link was clicked
)

// tracked is true of a metric that package tracking counts.
func (m *Metric) tracked() bool { return m.Type == UniqueOpens || m.Type == UniqueClicks }

// did is what a recipient that counts did.
func (m *Metric) did() string {
	switch m.Type {
	case UniqueOpens:
		return "opened the message"
	case UniqueClicks:
		return "clicked a link"
	}
	return "converted"
}

// typed is the metric with its type; nil stays nil.
func (m *Metric) typed() *Metric {
	if m == nil || m.Type != "" {
		return m
	}
	one := *m
	switch {
	case m.Event != "" && m.SQL == "":
		one.Type = EventMetric
	case m.Event == "" && m.SQL != "":
		one.Type = SQLMetric
	}
	return &one
}

// matches reports whether the fields of a metric are those of its type.
func (m *Metric) matches() bool {
	return (m.Event != "") == (m.Type == EventMetric) && (m.SQL != "") == (m.Type == SQLMetric)
}

// faults finds the faults of a metric that need no other row.
func (m *Metric) faults(channel lemma.Channel, add func(pointer, code, detail string, args ...any)) {
	switch {
	case m == nil:
	case m.Type == "":
		add("/metric", "invalid", "must have either an event or sql, not both, or the type unique_opens or unique_clicks")
	case !m.matches():
		add("/metric", "invalid", "must have an event exactly with the type event, and sql exactly with the type sql")
	case utf8.RuneCountInString(m.Event) > lemma.MaxEventName:
		add("/metric/event", "too_long", "must have at most %d characters", lemma.MaxEventName)
	case m.tracked() && channel != lemma.Email:
		add("/metric/type", "wrong_channel", "must be event or sql: only emails are tracked, and the channel is %s", channel)
	}
}

// checkSQL validates the SQL of a metric at its data source.
func (c *Campaigns) checkSQL(ctx context.Context, workspaceID uuid.UUID, m *Metric) error {
	if m == nil || m.SQL == "" {
		return nil
	}
	err := c.audiences.ValidateKeys(ctx, workspaceID, m.DataSourceID, m.SQL)
	if lemma.KindOf(err) == lemma.NotFound {
		err = lemma.Fault("/data_source_id", "unknown_id", "must be an existing data source of this workspace")
	}
	return under("/experiment/metric", err)
}

// checkTracked checks that the messages of each variant track what the metric counts:
// the rate of a variant that does not would be 0.
func (c *Campaigns) checkTracked(now Campaign, e Experiment, contents []*message.Compiled) error {
	if e.Metric == nil || !e.Metric.tracked() {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return lemma.Fault("/experiment/metric/type", "not_tracked", format, args...)
	}
	if c.cfg.PublicURL() == "" {
		return refuse("must be event or sql: nothing is tracked, since the server has no public URL; set LEMMA_PUBLIC_URL")
	}
	for i, content := range contents {
		tracks, name := content.Tracks(now.Transactional), e.Variants[i].Name
		switch {
		case e.Metric.Type == UniqueOpens && !tracks.Opens:
			return refuse("must not be unique_opens: the template of variant %s tracks no opens", name)
		case e.Metric.Type == UniqueClicks && !tracks.Clicks:
			return refuse("must not be unique_clicks: the template of variant %s tracks no clicks", name)
		case e.Metric.Type == UniqueClicks && len(content.Links()) == 0:
			return refuse("must not be unique_clicks: the template of variant %s has no link", name)
		}
	}
	return nil
}

// readEngaged reads how many profiles of each variant opened or clicked before a time, and
// how many notifications machines only did, which do not count. several reports whether a profile
// may have several notifications.
func (c *Campaigns) readEngaged(ctx context.Context, it Iteration, until time.Time, several bool, all []Tally) error {
	first, machine := "opened_at", "machine_opened_at"
	if it.Metric.Type == UniqueClicks {
		first, machine = "clicked_at", "machine_clicked_at"
	}
	counted, join := "*", ""
	if several {
		counted = "distinct n.profile_key"
		join = "join notifications n on n.workspace_id = e.workspace_id and n.origin_id = e.origin_id and n.key = e.key"
	}
	rows, _ := c.pool.Query(ctx, fmt.Sprintf(`
		select r.i::int - 1, e.counted, e.excluded
		from unnest($3::uuid[]) with ordinality as r (content_id, i)
		join (
			select e.content_id, count(%[3]s) filter (where %[1]s < $4) as counted,
				count(*) filter (where %[2]s < $4 and (%[1]s is null or %[1]s >= $4)) as excluded
			from engagements e %[4]s
			where e.workspace_id = $1 and e.origin_id = $2 group by e.content_id
		) e on e.content_id = r.content_id`, first, machine, counted, join), it.WorkspaceID, it.CampaignID, it.contents(), until)
	var i int
	var converted, excluded int64
	_, err := pgx.ForEachRow(rows, []any{&i, &converted, &excluded}, func() error {
		*all[i].Converted, all[i].Excluded = converted, excluded
		return nil
	})
	return lemma.Wrap(err, "count engagements of iteration %s", it.ID)
}
