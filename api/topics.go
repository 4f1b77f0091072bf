package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/suppression"
)

type topicBody struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
	version     int
}

func (b topicBody) etag() int        { return b.version }
func (b topicBody) location() string { return "/v1/topics/" + b.ID }

func showTopic(t suppression.Topic) topicBody {
	return topicBody{ID: lemma.FormatID(lemma.PrefixTopic, t.ID), Name: t.Name, Description: t.Description,
		CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(), version: t.Version}
}

type newTopic struct {
	Name        string `json:"name" validate:"single_line"`
	Description string `json:"description"`
}

type topicPatch struct {
	Name        *string `json:"name" validate:"omitempty,single_line"`
	Description *string `json:"description"`
}

func (s *server) listTopics(ctx context.Context, c *call, _ none) (list[topicBody], error) {
	found, next, err := s.Suppressions.Topics(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showTopic)
}

func (s *server) createTopic(ctx context.Context, c *call, in newTopic) (topicBody, error) {
	made, err := s.Suppressions.CreateTopic(ctx, c.workspace(), suppression.NewTopic{ID: c.newID, Name: in.Name, Description: in.Description})
	return showTopic(made), err
}

func (s *server) getTopic(ctx context.Context, c *call, _ none) (topicBody, error) {
	found, err := s.Suppressions.Topic(ctx, c.workspace(), c.id)
	return showTopic(found), err
}

func (s *server) updateTopic(ctx context.Context, c *call, in topicPatch) (topicBody, error) {
	changed, err := s.Suppressions.UpdateTopic(ctx, c.workspace(), c.id, c.ifMatch, suppression.TopicPatch(in))
	return showTopic(changed), err
}

func (s *server) deleteTopic(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.usedBy(ctx, c, s.Suppressions.DeleteTopic(ctx, c.workspace(), c.id))
}

type preferencesBody struct {
	Channel      lemma.Channel     `json:"channel"`
	Address      string            `json:"address"`
	Suppressions []suppressionBody `json:"suppressions"`
	Topics       []preferenceBody  `json:"topics"`
	TopicCount   int               `json:"topic_count"`
}

type preferenceBody struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Subscribed bool   `json:"subscribed"`
}

func (s *server) readPreferences(ctx context.Context, c *call, _ none) (preferencesBody, error) {
	var first uuid.UUID
	if id, _ := c.filterID("topic_id", lemma.PrefixTopic); id != nil {
		first = *id
	}
	return s.preferencesOf(ctx, c, lemma.Channel(c.query("channel")), c.query("address"), first)
}

func (s *server) preferencesOf(ctx context.Context, c *call, channel lemma.Channel, address string, first uuid.UUID) (
	preferencesBody, error) {
	p, err := s.Suppressions.Preferences(ctx, c.workspace(), channel, address, first)
	return preferencesBody{p.Channel, p.Address, each(p.Suppressions, showSuppression),
		each(p.Topics, func(t suppression.Preference) preferenceBody {
			return preferenceBody{lemma.FormatID(lemma.PrefixTopic, t.TopicID), t.Name, t.Subscribed}
		}), p.TopicCount}, err
}

type newPreference struct {
	Channel    lemma.Channel `json:"channel"`
	Address    string        `json:"address"`
	TopicID    string        `json:"topic_id"`
	Subscribed bool          `json:"subscribed"`
}

func (s *server) setPreference(ctx context.Context, c *call, in newPreference) (preferencesBody, error) {
	topic, ok := lemma.ParseID(lemma.PrefixTopic, in.TopicID)
	if !ok {
		return preferencesBody{}, unknownID("/topic_id", "topic")
	}
	err := s.Suppressions.SetTopic(ctx, c.workspace(), topic, in.Channel, in.Address, in.Subscribed)
	if lemma.KindOf(err) == lemma.NotFound {
		err = unknownID("/topic_id", "topic")
	}
	if err != nil {
		return preferencesBody{}, err
	}
	return s.preferencesOf(ctx, c, in.Channel, in.Address, topic)
}
