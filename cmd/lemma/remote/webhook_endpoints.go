package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"lemma/client"
)

// WebhookEndpoints are the commands for webhook endpoints.
type WebhookEndpoints struct {
	List     endpointsListCommand     `cmd:"" help:"List webhook endpoints, newest first."`
	Create   endpointsCreateCommand   `cmd:"" help:"Create a webhook endpoint, and print its secret once."`
	Get      endpointsGetCommand      `cmd:"" help:"Show a webhook endpoint and the state of its messages."`
	Update   endpointsUpdateCommand   `cmd:"" help:"Change a webhook endpoint. Subscriptions that are given replace all."`
	Enable   endpointsEnableCommand   `cmd:"" help:"Enable a webhook endpoint."`
	Disable  endpointsDisableCommand  `cmd:"" help:"Disable a webhook endpoint: its messages fail and are not sent."`
	Delete   endpointsDeleteCommand   `cmd:"" help:"Delete a webhook endpoint with its messages."`
	Messages endpointsMessagesCommand `cmd:"" help:"List the messages of a webhook endpoint with a status, newest first."`
	Event    endpointsEventCommand    `cmd:"" help:"Show an event that a message carries, with its items as they are now."`
	Resend   endpointsResendCommand   `cmd:"" help:"Send messages again: one, or those of a time range."`
	Test     endpointsTestCommand     `cmd:"" help:"Send a message of the type test."`
	Rotate   endpointsRotateCommand   `cmd:"" help:"Make another secret, and print it once. For 24 hours messages are signed with both."`
}

// endpoint prints an endpoint.
func (o output) endpoint(out io.Writer, e client.WebhookEndpoint, err error) error {
	if err != nil && !errors.Is(err, client.ErrSecretLost) {
		return err
	}
	return errors.Join(err, o.print(out, e, func(out io.Writer) error {
		fields := []string{"id", e.ID, "name", e.Name, "url", e.URL, "status", e.Status, "because of", or(e.StatusReason, ""),
			"disabled", stampOr(e.DisabledAt, ""), "events sent", fmt.Sprint(e.Sequence), "created", stamp(e.CreatedAt)}
		for _, s := range e.Subscriptions {
			fields = append(fields, "subscribes to", subscription(s))
		}
		if h := e.Health; h != nil {
			fields = append(fields, "pending", fmt.Sprint(h.Pending), "oldest pending", stampOr(h.OldestPending, ""),
				"last delivered", stampOr(h.LastDeliveredAt, ""))
			if f := h.LastFailure; f != nil {
				fields = append(fields, "last failure", strings.TrimSpace(stamp(f.At)+" "+f.Reason+" "+or(f.StatusCode, "")))
			}
		}
		return printFields(out, append(fields, "secret", or(e.Secret, ""))...)
	}))
}

// subscription formats a subscription on one line.
func subscription(s client.WebhookSubscription) string {
	parts := []string{strings.Join(s.Types, ", ")}
	if of := slices.Concat(s.CampaignIDs, s.FlowIDs); len(of) > 0 {
		parts = append(parts, "of "+strings.Join(of, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Metadata)) {
		parts = append(parts, "with "+name+"="+s.Metadata[name])
	}
	return strings.Join(parts, " ")
}

// ofEndpoint is a command for one endpoint.
type ofEndpoint struct {
	ID string `arg:"" help:"The id of the webhook endpoint."`
}

// subscribing are the flags of one subscription.
type subscribing struct {
	Types     []string          `name:"type" placeholder:"TYPE" help:"Types of events, such as notification.sent,campaign.paused."`
	Campaigns []string          `name:"campaign" placeholder:"ID" help:"Only events of these campaigns."`
	Flows     []string          `name:"flow" placeholder:"ID" help:"Only events of these flows."`
	Metadata  map[string]string `placeholder:"NAME=VALUE" help:"Only events of what has these entries in its metadata."`
}

func (s subscribing) all() []client.WebhookSubscription {
	if len(s.Types)+len(s.Campaigns)+len(s.Flows)+len(s.Metadata) == 0 {
		return nil
	}
	return []client.WebhookSubscription{{Types: s.Types, CampaignIDs: s.Campaigns, FlowIDs: s.Flows, Metadata: s.Metadata}}
}

type endpointsListCommand struct {
	listing
	Status string `help:"Only endpoints with this status: enabled, disabled."`
	Name   string `help:"Only endpoints with this name."`
}

func (l endpointsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.call(cfg, func(c *client.Client) error {
		return list(l.listing, out, c.ListWebhookEndpoints(ctx, client.WebhookEndpointFilter{Status: l.Status, Name: l.Name}),
			"ID|NAME|URL|STATUS|REASON|EVENTS|CREATED", func(e client.WebhookEndpoint) []string {
				return []string{e.ID, e.Name, e.URL, e.Status, or(e.StatusReason, ""), fmt.Sprint(e.Sequence), stamp(e.CreatedAt)}
			})
	})
}

type endpointsCreateCommand struct {
	output
	subscribing
	Name string `arg:"" help:"The name."`
	URL  string `arg:"" help:"The https URL that receives the messages."`
}

func (n endpointsCreateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return n.call(cfg, func(c *client.Client) error {
		e, err := c.CreateWebhookEndpoint(ctx, client.NewWebhookEndpoint{Name: n.Name, URL: n.URL, Subscriptions: n.all()})
		return n.endpoint(out, e, err)
	})
}

type endpointsGetCommand struct {
	output
	ofEndpoint
}

func (g endpointsGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.call(cfg, func(c *client.Client) error {
		e, err := c.GetWebhookEndpoint(ctx, g.ID)
		return g.endpoint(out, e, err)
	})
}

// change changes an endpoint and prints it.
func (o output) change(ctx context.Context, cfg Config, out io.Writer, id string, p client.WebhookEndpointPatch) error {
	return o.call(cfg, func(c *client.Client) error {
		e, err := c.UpdateWebhookEndpoint(ctx, id, p)
		return o.endpoint(out, e, err)
	})
}

type endpointsUpdateCommand struct {
	output
	subscribing
	ofEndpoint
	Name string `help:"Another name."`
	URL  string `name:"to" placeholder:"URL" help:"Another https URL."`
	None bool   `help:"Subscribe to nothing."`
}

func (u endpointsUpdateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	p := client.WebhookEndpointPatch{Name: notEmpty(u.Name), URL: notEmpty(u.URL)}
	switch all := u.all(); {
	case u.None:
		p.Subscriptions = &[]client.WebhookSubscription{}
	case all != nil:
		p.Subscriptions = &all
	}
	return u.change(ctx, cfg, out, u.ID, p)
}

// notEmpty returns a text for the API: nil for one that was not given.
func notEmpty(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

type endpointsEnableCommand struct {
	output
	ofEndpoint
}

func (e endpointsEnableCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return e.change(ctx, cfg, out, e.ID, client.WebhookEndpointPatch{Status: new("enabled")})
}

type endpointsDisableCommand struct {
	output
	ofEndpoint
}

func (d endpointsDisableCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return d.change(ctx, cfg, out, d.ID, client.WebhookEndpointPatch{Status: new("disabled")})
}

type endpointsDeleteCommand struct {
	output
	ofEndpoint
}

func (d endpointsDeleteCommand) run(ctx context.Context, cfg Config, _ io.Writer) error {
	return d.call(cfg, func(c *client.Client) error { return c.DeleteWebhookEndpoint(ctx, d.ID) })
}

type endpointsMessagesCommand struct {
	listing
	ofEndpoint
	Status string    `default:"failed" enum:"pending,delivered,failed" help:"Only messages with this status: ${enum}."`
	Type   string    `help:"Only messages of this type."`
	After  time.Time `placeholder:"TIME" help:"Only messages that were written at this time or later (RFC 3339)."`
	Before time.Time `placeholder:"TIME" help:"Only messages that were written before this time (RFC 3339)."`
}

func (m endpointsMessagesCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	var options []client.CallOption
	if !m.After.IsZero() {
		options = append(options, client.CreatedAfter(m.After))
	}
	if !m.Before.IsZero() {
		options = append(options, client.CreatedBefore(m.Before))
	}
	return m.call(cfg, func(c *client.Client) error {
		return list(m.listing, out, c.ListWebhookMessages(ctx, m.ID, client.WebhookMessageFilter{Status: m.Status, Type: m.Type}, options...),
			"ID|TYPE|SEQUENCE|STATUS|ATTEMPTS|ANSWER|REASON|EVENT|CREATED|NEXT CALL", func(d client.WebhookDelivery) []string {
				return []string{d.ID, or(d.Type, ""), or(d.Sequence, ""), d.Status, fmt.Sprint(d.Attempts), or(d.StatusCode, ""),
					or(d.Reason, ""), or(d.EventID, ""), stamp(d.CreatedAt), stampOr(d.NextAt, "")}
			})
	})
}

type endpointsEventCommand struct {
	output
	ID string `arg:"" help:"The event's id."`
}

func (e endpointsEventCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return e.call(cfg, func(c *client.Client) error {
		found, err := c.GetEventOut(ctx, e.ID)
		if err != nil {
			return err
		}
		return e.print(out, found, func(out io.Writer) error {
			err := printFields(out, "id", found.ID, "type", found.Type, "occurred", stamp(found.OccurredAt),
				"campaign", or(found.CampaignID, ""), "flow", or(found.FlowID, ""), "data", compact(found.Data), "items", fmt.Sprint(found.Count))
			if err != nil || len(found.Items) == 0 {
				return err
			}
			return Table(out, "ID|PROFILE|ADDRESS|STATUS|REASON|DETAIL", found.Items, func(i client.EventOutItem) []string {
				return []string{i.ID, or(i.ProfileKey, ""), or(i.Address, ""), or(i.Status, ""), or(i.Reason, ""), or(i.Detail, "")}
			})
		})
	})
}

type endpointsResendCommand struct {
	output
	ofEndpoint
	Message  string    `placeholder:"ID" help:"One message, without the other flags."`
	After    time.Time `placeholder:"TIME" help:"Messages that were written at this time or later (RFC 3339)."`
	Before   time.Time `placeholder:"TIME" help:"Messages that were written before this time (RFC 3339)."`
	Statuses []string  `name:"status" placeholder:"STATUS" help:"Messages with one of these statuses: failed (default), delivered."`
}

func (r endpointsResendCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return r.call(cfg, func(c *client.Client) error {
		n, err := c.ResendWebhookMessages(ctx, r.ID, client.WebhookResend{MessageID: r.Message, CreatedAfter: notZero(r.After),
			CreatedBefore: notZero(r.Before), Statuses: r.Statuses})
		if err != nil {
			return err
		}
		return r.print(out, n, func(out io.Writer) error { return printFields(out, "resent", fmt.Sprint(n.Resent)) })
	})
}

type endpointsTestCommand struct {
	output
	ofEndpoint
}

func (t endpointsTestCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return t.call(cfg, func(c *client.Client) error {
		m, err := c.TestWebhookEndpoint(ctx, t.ID)
		if err != nil {
			return err
		}
		return t.print(out, m, func(out io.Writer) error {
			return printFields(out, "id", m.ID, "status", m.Status, "created", stamp(m.CreatedAt))
		})
	})
}

type endpointsRotateCommand struct {
	output
	ofEndpoint
}

func (r endpointsRotateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return r.call(cfg, func(c *client.Client) error {
		e, err := c.RotateWebhookEndpoint(ctx, r.ID)
		return r.endpoint(out, e, err)
	})
}
