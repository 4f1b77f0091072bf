package api

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/direct"
	"lemma/message"
)

// newNotification is one direct notification of a request.
type newNotification struct {
	To struct {
		Address    string  `json:"address"`
		ProfileKey string  `json:"profile_key"`
		AudienceID *string `json:"audience_id"`
	} `json:"to"`
	Channel         lemma.Channel              `json:"channel"`
	TemplateID      *string                    `json:"template_id"`
	TemplateVersion int                        `json:"template_version"`
	Content         *content                   `json:"content"`
	Data            map[string]json.RawMessage `json:"data"`
	ProviderID      *string                    `json:"provider_id"`
	From            *newFrom                   `json:"from"`
	ReplyTo         string                     `json:"reply_to" validate:"omitempty,address"`
	Headers         map[string]string          `json:"headers" validate:"dive,keys,header_name,not_reserved,endkeys,single_line"`
	Metadata        map[string]string          `json:"metadata"`
	Transactional   *bool                      `json:"transactional"`
	TopicID         *string                    `json:"topic_id"`
	Strategy        string                     `json:"strategy"`
	SendAt          *time.Time                 `json:"send_at"`
	ExpiresAt       *time.Time                 `json:"expires_at"`
	Key             string                     `json:"key"`
	keyTimes
}

// request converts the notification for package direct.
func (in newNotification) request(id uuid.UUID, again bool) (direct.Request, error) {
	audience, err := references(in.To.AudienceID, nil, nil, nil)
	if err != nil {
		return direct.Request{}, lemma.Fault("/to/audience_id", "unknown_id", "must be an audience of this workspace")
	}
	refs, err := references(nil, in.TemplateID, in.ProviderID, in.TopicID)
	if err != nil {
		return direct.Request{}, err
	}
	lock, seal, err := in.read("")
	if err != nil {
		return direct.Request{}, err
	}
	text, err := json.Marshal(in)
	if err != nil {
		return direct.Request{}, err
	}
	r := direct.Request{ID: id, Again: again, Hash: lemma.Key("direct-request/1", string(text)), Key: in.Key,
		To:         direct.To{Address: in.To.Address, ProfileKey: in.To.ProfileKey, AudienceID: audience.audience},
		TemplateID: refs.template, TemplateVersion: in.TemplateVersion, Inline: in.inline(), Channel: in.Channel, Data: in.Data,
		ProviderID: refs.provider, Topic: refs.topic, Email: direct.Envelope{ReplyTo: in.ReplyTo, Headers: in.Headers},
		Metadata: in.Metadata, Transactional: in.Transactional, Strategy: in.Strategy, SendAt: in.SendAt, ExpiresAt: in.ExpiresAt}
	if in.From != nil {
		r.Email.FromEmail, r.Email.FromName = in.From.Email, in.From.Name
	}
	for to, d := range map[*time.Duration]*time.Duration{&r.LockFor: lock, &r.SealFor: seal} {
		if d != nil {
			*to = max(*d, 1) // 0 would be the default; it is out of range
		}
	}
	return r, nil
}

func (in newNotification) inline() *message.Content {
	if in.Content == nil {
		return nil
	}
	m := in.Content.message()
	return &m
}

// sentBody is the answer to a direct notification.
type sentBody struct{ client.SentNotification }

func (b sentBody) location() string { return "/v1/notifications/" + b.Notification.ID }

func (b sentBody) status() int {
	if b.Filtered {
		return http.StatusOK
	}
	return http.StatusAccepted
}

func (s *server) sendNotification(ctx context.Context, c *call, in newNotification) (sentBody, error) {
	r, err := in.request(c.newID, c.attempt > 1)
	if err != nil {
		return sentBody{}, err
	}
	sent, err := s.Direct.Send(ctx, c.workspace(), r)
	shown := showNotification(sent.Notification)
	if in.To.AudienceID != nil {
		c.hideAddress(&shown)
	}
	return sentBody{client.SentNotification{Notification: shown, Filtered: sent.Filtered, Others: othersOf(sent)}}, locked(err)
}

// hideAddress removes an address from the answer to a key that may neither read notifications
// nor the rows of an audience.
func (c *call) hideAddress(n *client.Notification) {
	if !c.key.Has("notifications:read") && !c.key.Has("audiences:query") {
		n.Address = nil
	}
}

// othersOf is null for an earlier notification.
func othersOf(s direct.Sent) *int {
	if s.Filtered {
		return nil
	}
	return &s.Others
}

// locked is the answer to a request whose key is locked.
func locked(err error) error {
	var l *direct.Locked
	if !errors.As(err, &l) {
		return err
	}
	return &refusal{status: http.StatusConflict, code: "key_locked", detail: l.Error(),
		header: map[string]string{"Retry-After": strconv.Itoa(int(math.Ceil(max(l.RetryAfter.Seconds(), 1))))}}
}

func hasKey(in newNotification) bool { return in.Key != "" }

func haveKeys(in newNotifications) bool {
	return allItems(in.Notifications, hasKey)
}

type newNotifications struct {
	Notifications []json.RawMessage `json:"notifications"`
}

func (s *server) sendNotifications(ctx context.Context, c *call, in newNotifications) (client.SentNotifications, error) {
	all, err := readItems[newNotification](ctx, s, c, "notifications", "NewNotification", in.Notifications)
	if err != nil {
		return client.SentNotifications{}, err
	}
	requests := make([]direct.Request, 0, len(all.sound))
	kept := all.sound[:0]
	for _, i := range all.sound {
		if r, err := all.items[i].value.request(itemID(c.newID, i), c.attempt > 1); err != nil {
			all.put(i, err)
		} else {
			requests, kept = append(requests, r), append(kept, i)
		}
	}
	all.sound = kept
	done, err := s.Direct.SendAll(ctx, c.workspace(), requests)
	if err != nil {
		return client.SentNotifications{}, err
	}
	return sentItems(all, done)
}

// itemID is the id of an item of a bulk: of the time of the request's id, and the same in
// each attempt.
func itemID(request uuid.UUID, i int) uuid.UUID {
	id := lemma.Key("direct-item/1", request.String(), strconv.Itoa(i))
	copy(id[:6], request[:6])
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id
}

// sentItems merges the results of the valid items with the faults of the others.
func sentItems(l items[newNotification], done []direct.Result) (client.SentNotifications, error) {
	out := client.SentNotifications{Results: make([]client.SentItem, len(l.items))}
	for i, d := range done {
		r := &out.Results[l.sound[i]]
		err := locked(d.Err)
		if l.blame(l.sound[i], err) != nil { // a key that is locked
			l.put(l.sound[i], err)
			r.Status = "locked"
			continue
		}
		id := lemma.FormatNotificationID(d.Notification.OriginID, d.Notification.Key)
		r.Others = othersOf(d.Sent)
		if r.ID, r.Status = &id, "accepted"; d.Filtered {
			r.Status = "filtered"
		}
	}
	for i := range out.Results {
		r := &out.Results[i]
		r.Index, r.Key, r.Errors = i, orNull(l.items[i].value.Key), each(l.items[i].faults, showFault)
		switch {
		case r.Status == "locked":
			out.Counts.Locked++
		case len(r.Errors) > 0:
			r.ID, r.Status, r.Others = nil, "invalid", nil
			out.Counts.Invalid++
		case r.Status == "filtered":
			out.Counts.Filtered++
		default:
			out.Counts.Accepted++
		}
	}
	return out, nil
}

func (s *server) cancelNotification(ctx context.Context, c *call, _ none) (client.Notification, error) {
	origin, key, err := c.notificationID()
	if err != nil {
		return client.Notification{}, err
	}
	found, err := s.Ledger.CancelOne(ctx, c.workspace(), origin, key)
	shown := showNotification(found)
	c.hideAddress(&shown)
	return shown, err
}
