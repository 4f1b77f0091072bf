package remote

import (
	"context"
	"fmt"
	"io"
	"time"

	"lemma/client"
)

// Notifications are the commands for notifications.
type Notifications struct {
	List   notificationsListCommand   `cmd:"" help:"List notifications, those of the newest campaign first, or of the newest month of a flow."`
	Send   notificationsSendCommand   `cmd:"" help:"Send one message to one recipient."`
	Get    notificationsGetCommand    `cmd:"" help:"Show a notification."`
	Cancel notificationsCancelCommand `cmd:"" help:"Cancel a direct notification that waits."`
}

type notificationsListCommand struct {
	listing
	Campaign   string `help:"Only notifications of this campaign (id)."`
	Flow       string `help:"Only notifications of this flow (id or name)."`
	Direct     bool   `help:"Only direct notifications."`
	Channel    string `help:"Only notifications of this channel: email, sms, push."`
	Status     string `help:"Only notifications with this status: pending, processing, sent, failed, orphaned, skipped, cancelled."`
	Resolution string `help:"Only orphaned notifications with this resolution: sent, not_sent; none: those that wait for a person."`
	Delivery   string `help:"Only notifications with this delivery state, such as bounced."`
	Reason     string `help:"Only notifications with this reason, such as suppressed."`
	Profile    string `help:"Only notifications of this profile; needs --campaign, --flow or --direct."`
	Address    string `help:"Only notifications to this address; needs --campaign, --flow or --direct."`
}

func (l notificationsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.call(cfg, func(c *client.Client) error {
		f := client.NotificationFilter{CampaignID: l.Campaign, Direct: l.Direct, Channel: l.Channel, Status: l.Status,
			Resolution: l.Resolution, Delivery: l.Delivery, Reason: l.Reason, ProfileKey: l.Profile, Address: l.Address}
		if l.Flow != "" {
			var err error
			if f.FlowID, err = flowID(ctx, c, l.Flow); err != nil {
				return err
			}
		}
		return list(l.listing, out, c.ListNotifications(ctx, f), "ID|PROFILE|CHANNEL|ADDRESS|STATUS|REASON|RESOLUTION|DELIVERY|CREATED|ENDED",
			func(n client.Notification) []string {
				return []string{n.ID, n.ProfileKey, n.Channel, or(n.Address, ""), n.Status, or(n.Reason, ""), or(n.Resolution, ""), n.Delivery,
					stamp(n.CreatedAt), stampOr(n.EndedAt, "")}
			})
	})
}

type notificationsSendCommand struct {
	output
	Address   string     `arg:"" optional:"" help:"An email address, a phone number or the token of a device. Not with --profile."`
	Profile   string     `help:"The profile key, with --audience."`
	Audience  string     `help:"The id of the audience that supplies the address and the data."`
	Template  string     `help:"The id of the template."`
	Version   int        `help:"The version of the template; default: the newest."`
	Channel   string     `help:"Of a content without a template: email, sms or push; default: email."`
	Subject   string     `help:"The subject of an email without a template, or the title of a push."`
	Text      string     `help:"The text of a message without a template."`
	Data      objectFlag `placeholder:"JSON" help:"The variables of the content."`
	Provider  string     `help:"The id of the provider; default: the only one of the channel."`
	From      string     `help:"The sender of an email."`
	Topic     string     `help:"The id of the topic, which recipients may have unsubscribed from."`
	Strategy  string     `help:"When an outcome is unknown: at_most_once (default) or at_least_once."`
	Key       string     `help:"Your id of the message: under one key one message is sent."`
	SendAt    time.Time  `placeholder:"TIME" help:"When it is sent (RFC 3339); default: now."`
	ExpiresAt time.Time  `placeholder:"TIME" help:"When it is skipped if it is not sent by then (RFC 3339)."`
}

// request is the request of the flags.
func (s notificationsSendCommand) request() client.NewNotification {
	n := client.NewNotification{To: client.NotificationTo{Address: s.Address, ProfileKey: s.Profile, AudienceID: s.Audience},
		TemplateID: s.Template, TemplateVersion: s.Version, Data: s.Data.raw(), ProviderID: s.Provider, TopicID: s.Topic, Strategy: s.Strategy,
		Key: s.Key, SendAt: notZero(s.SendAt), ExpiresAt: notZero(s.ExpiresAt)}
	if s.From != "" {
		n.From = &client.Sender{Email: s.From}
	}
	switch {
	case s.Template != "":
		n.Channel = s.Channel
	case s.Channel == "push":
		n.Content = &client.NotificationText{Channel: s.Channel, Title: s.Subject, Body: s.Text}
	case s.Subject != "" || s.Text != "":
		n.Content = &client.NotificationText{Channel: s.Channel, Subject: s.Subject, Text: s.Text}
	}
	return n
}

func (s notificationsSendCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return s.call(cfg, func(c *client.Client) error {
		sent, err := c.SendNotification(ctx, s.request())
		if err != nil {
			return err
		}
		return s.print(out, sent, func(out io.Writer) error {
			if sent.Filtered {
				fmt.Fprintln(out, "filtered by idempotency: the notification is that of the first request under this key")
			}
			if n := sent.Others; n != nil && *n > 0 {
				fmt.Fprintf(out, "sent to the first address: the profile has %d more\n", *n)
			}
			return s.notification(out, sent.Notification, nil)
		})
	})
}

// notification prints a notification that was read or changed.
func (o output) notification(out io.Writer, n client.Notification, err error) error {
	if err != nil {
		return err
	}
	return o.print(out, n, func(out io.Writer) error {
		return printFields(out, "id", n.ID, "channel", n.Channel, "profile", n.ProfileKey, "address", or(n.Address, ""), "status", n.Status,
			"reason", or(n.Reason, ""), "attempts", fmt.Sprint(n.Attempts), "delivery", n.Delivery, "created", stamp(n.CreatedAt),
			"due", stampOr(n.DueAt, ""), "expires", stampOr(n.ExpiresAt, ""), "ended", stampOr(n.EndedAt, ""))
	})
}

// ofNotification is a command for one notification.
type ofNotification struct {
	ID string `arg:"" help:"The notification's id."`
}

type notificationsGetCommand struct {
	output
	ofNotification
}

func (g notificationsGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.call(cfg, func(c *client.Client) error {
		n, err := c.GetNotification(ctx, g.ID)
		return g.notification(out, n, err)
	})
}

type notificationsCancelCommand struct {
	output
	ofNotification
}

func (g notificationsCancelCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.call(cfg, func(c *client.Client) error {
		n, err := c.CancelNotification(ctx, g.ID)
		return g.notification(out, n, err)
	})
}
