package suppression

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/page"
	"lemma/pgerr"
)

// Topic is a kind of marketing that recipients can unsubscribe from by itself, such
// as a weekly newsletter.
type Topic struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	Name        string // unique in its workspace; recipients see it
	Description string // recipients see it
	Version     int    // ETag
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// NewTopic has the fields of a new topic.
type NewTopic struct {
	ID                uuid.UUID
	Name, Description string
}

// TopicPatch changes a topic; a nil field stays unchanged.
type TopicPatch struct{ Name, Description *string }

const maxDescription = 1000

var savingTopic = pgerr.Rules{"topics_name": pgerr.NameTaken("topic")}

func checkTopic(name, description *string) error {
	if name != nil {
		if err := lemma.CheckName(*name); err != nil {
			return err
		}
	}
	if description != nil && len(*description) > maxDescription {
		return lemma.Fault("/description", "too_long", "must have at most %d bytes", maxDescription)
	}
	return nil
}

const topicColumns = `id, workspace_id, name, description, version, created_at, updated_at`

// MaxTopics is how many topics a workspace has at most: the preference page sorts all of them.
const MaxTopics = 5_000

// CreateTopic saves a topic. Creating one id twice makes one topic.
func (s *Suppressions) CreateTopic(ctx context.Context, ws uuid.UUID, n NewTopic) (Topic, error) {
	if err := checkTopic(&n.Name, &n.Description); err != nil {
		return Topic{}, err
	}
	err := fence.Transact(ctx, s.pool, func(tx pgx.Tx) error { return insertTopic(ctx, tx, ws, n) })
	if err != nil {
		return Topic{}, savingTopic.Explain(err, "create topic")
	}
	return s.Topic(ctx, ws, n.ID)
}

func insertTopic(ctx context.Context, tx pgx.Tx, ws uuid.UUID, n NewTopic) error {
	if _, err := tx.Exec(ctx, `select from workspaces where id = $1 for no key update`, ws); err != nil { // creations count each other
		return err
	}
	var made, full bool
	err := tx.QueryRow(ctx, `
		with others as (select count(*) as n from topics where workspace_id = $1 and id <> $2), made as (
			insert into topics (workspace_id, id, name, description) select $1, $2, $3, $4 from others where n < $5
			on conflict (workspace_id, id) do nothing returning id
		)
		select exists (select from made), n >= $5 from others`, ws, n.ID, n.Name, n.Description, MaxTopics).Scan(&made, &full)
	switch {
	case err != nil:
		return err
	case full:
		return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_topics",
			Message: fmt.Sprintf("the workspace has %d topics; delete one", MaxTopics)}
	case !made:
		return fence.ErrUnchanged
	}
	return nil
}

// Topic reads one topic.
func (s *Suppressions) Topic(ctx context.Context, ws, id uuid.UUID) (Topic, error) {
	rows, _ := s.pool.Query(ctx, `select `+topicColumns+` from topics where workspace_id = $1 and id = $2`, ws, id)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Topic])
	return found, pgerr.Row(err, "topic", "get topic")
}

var topicList = page.Named("topics", "", func(t Topic) uuid.UUID { return t.ID }, func(t Topic) string { return t.Name })

// Topics reads a page of topics.
func (s *Suppressions) Topics(ctx context.Context, ws uuid.UUID, q page.Query) ([]Topic, string, error) {
	return topicList.Read(ctx, s.pool, q, ws, `select `+topicColumns+` from topics where workspace_id = $1`, pgx.RowToStructByName[Topic])
}

// UpdateTopic changes a topic. ifMatch, if not nil, must be its version.
func (s *Suppressions) UpdateTopic(ctx context.Context, ws, id uuid.UUID, ifMatch *int, p TopicPatch) (Topic, error) {
	if err := checkTopic(p.Name, p.Description); err != nil {
		return Topic{}, err
	}
	changed, err := fence.One(ctx, s.pool, pgx.RowToStructByName[Topic], `
		update topics set name = coalesce($4, name), description = coalesce($5, description), version = version + 1, updated_at = now()
		where workspace_id = $1 and id = $2 and ($3::int is null or version = $3)
		returning `+topicColumns, ws, id, ifMatch, p.Name, p.Description)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := s.Topic(ctx, ws, id); err != nil {
			return Topic{}, err
		}
		return Topic{}, lemma.Changed("topic")
	}
	return changed, savingTopic.Explain(err, "update topic")
}

// DeleteTopic deletes a topic that nothing uses, with the addresses that have unsubscribed
// from it. Notifications that wait use it, since these addresses are not sent to. They are
// read after the delete, which waits for those that are being written: see package direct.
func (s *Suppressions) DeleteTopic(ctx context.Context, ws, id uuid.UUID) error {
	err := fence.Transact(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `delete from topics where workspace_id = $1 and id = $2`, ws, id)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return lemma.Missing("topic")
		}
		var used bool
		err = tx.QueryRow(ctx, `
			select exists (
				select from batches b
				cross join lateral (
					select c.topic_id from contents c where c.workspace_id = b.workspace_id and c.id = b.content_id limit 1) c
				where b.workspace_id = $1 and b.status in ('ready', 'leased') and c.topic_id = $2)`, ws, id).Scan(&used)
		if err == nil && used {
			err = pgerr.InUse("notifications of this topic are pending")
		}
		return err
	})
	return pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("a campaign or a flow uses this topic")}.Explain(err, "delete topic")
}

// Preference is whether an address gets the messages of a topic.
type Preference struct {
	TopicID     uuid.UUID
	Name        string
	Description string
	Subscribed  bool
}

// Preferences are what an address gets.
type Preferences struct {
	Channel      lemma.Channel
	Address      string // canonical
	Suppressions []Suppression
	Topics       []Preference // in the order of their names, at most TopicsPerPage
	TopicCount   int          // of all topics, if Topics has one
}

// Preferences reads what an address gets. The topic first is before all others.
func (s *Suppressions) Preferences(ctx context.Context, ws uuid.UUID, channel lemma.Channel, address string, first uuid.UUID) (
	p Preferences, err error) {
	known, ok := canonical(channel, address)
	if !ok {
		return p, lemma.Fault("?address", "invalid_address", "must be an address of the channel %s", channel)
	}
	return s.PreferencesOf(ctx, ws, Recipient{Channel: channel, Key: keyOf(channel, known), Address: known}, first, 0)
}

// SetTopic subscribes an address to a topic, or unsubscribes it. Repeated, it
// changes nothing.
func (s *Suppressions) SetTopic(ctx context.Context, ws, topic uuid.UUID, channel lemma.Channel, address string, subscribed bool) error {
	known, ok := canonical(channel, address)
	if !ok {
		return lemma.Fault("/address", "invalid_address", "must be an address of the channel %s", channel)
	}
	sql := `insert into topic_unsubscribes (workspace_id, topic_id, key) values ($1, $2, $3) on conflict do nothing`
	if subscribed {
		sql = `delete from topic_unsubscribes where workspace_id = $1 and topic_id = $2 and key = $3`
	}
	if _, err := s.Topic(ctx, ws, topic); err != nil {
		return err
	}
	_, err := fence.Exec(ctx, s.pool, sql, ws, topic, keyOf(channel, known))
	return pgerr.Rules{pgerr.ForeignKey: lemma.Missing("topic")}.Explain(err, "set topic of an address")
}
