package api

import (
	"context"
	"encoding/json"
	"time"

	"lemma"
	"lemma/providers"
)

type providerBody struct {
	ID             string          `json:"id"`
	Name           string          `json:"name"`
	Channel        lemma.Channel   `json:"channel"`
	Kind           string          `json:"kind"`
	Config         json.RawMessage `json:"config"`
	HasSecrets     bool            `json:"has_secrets"`
	RatePerSecond  *float64        `json:"rate_per_second"`
	Capabilities   Capabilities    `json:"capabilities"`
	EffectiveBound effectiveBound  `json:"effective_bound"`
	Health         providerHealth  `json:"health"`
	WebhookURL     string          `json:"webhook_url,omitempty"`
	Warnings       []string        `json:"warnings"`
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
	version        int
}

func (b providerBody) etag() int        { return b.version }
func (b providerBody) location() string { return "/v1/providers/" + b.ID }

// effectiveBound is how many deliveries of a notification are possible, by strategy, and
// what its recipient sees of two.
type effectiveBound struct {
	AtLeastOnce int    `json:"at_least_once"`
	AtMostOnce  int    `json:"at_most_once"`
	Word        string `json:"word"`
	Sentence    string `json:"sentence"`
}

type providerHealth struct {
	Circuit      string     `json:"circuit"`
	NextProbeAt  *time.Time `json:"next_probe_at"`
	Failures     int        `json:"failures"`
	FirstError   *string    `json:"first_error"`
	FailingSince *time.Time `json:"failing_since"`
	LastError    *string    `json:"last_error"`
	FailedAt     *time.Time `json:"failed_at"`
	ThrottledAt  *time.Time `json:"throttled_at"`
	ThrottledBy  *string    `json:"throttled_by"`
}

func healthOf(p providers.Provider) providerHealth {
	h := providerHealth{Circuit: "closed", NextProbeAt: utc(p.NextProbeAt), Failures: p.Failures, FirstError: orNull(p.FirstError),
		FailingSince: utc(p.FailingSince), LastError: orNull(p.LastError), FailedAt: utc(p.FailedAt),
		ThrottledAt: utc(p.ThrottledAt), ThrottledBy: orNull(p.ThrottledBy)}
	if p.CircuitOpen {
		h.Circuit = "open"
	}
	return h
}

func (s *server) showProvider(p providers.Provider) providerBody {
	can := s.Capabilities(p.Kind)
	body := providerBody{ID: lemma.FormatID(lemma.PrefixProvider, p.ID), Name: p.Name, Channel: p.Channel, Kind: p.Kind,
		Config: p.Config, HasSecrets: p.HasSecrets, RatePerSecond: p.RatePerSecond, Capabilities: can, EffectiveBound: can.bounds(),
		Health: healthOf(p), Warnings: each(s.Warnings(p.Kind, p.Config), asIs),
		CreatedAt: p.CreatedAt.UTC(), UpdatedAt: p.UpdatedAt.UTC(), version: p.Version}
	if s.Hooks != nil {
		body.WebhookURL = s.Hooks.URL(p.Kind, p.ID)
	}
	body.Capabilities.Events = p.Receives && body.WebhookURL != ""
	return body
}

// bounds returns the effective bounds: a second attempt is a second delivery unless the
// carrier recognises it. A device that collapses two deliveries has received both: if
// the first was dismissed, it shows the second.
func (c Capabilities) bounds() effectiveBound {
	if c.IdempotencyKey {
		return effectiveBound{1, 1, "once", "At most one delivery: the carrier recognises a second attempt."}
	}
	return effectiveBound{bound("at_least_once"), bound("at_most_once"), c.twice(),
		"At most two deliveries: the second only with at_least_once, if the outcome of the first attempt is unknown." + c.replacing()}
}

type newProvider struct {
	Name          string          `json:"name"`
	Kind          string          `json:"kind"`
	Channel       lemma.Channel   `json:"channel"`
	Config        json.RawMessage `json:"config"`
	Secrets       json.RawMessage `json:"secrets"`
	RatePerSecond *float64        `json:"rate_per_second"`
}

type providerPatch struct {
	Name          *string           `json:"name"`
	Config        json.RawMessage   `json:"config"`
	Secrets       json.RawMessage   `json:"secrets"`
	RatePerSecond optional[float64] `json:"rate_per_second"`
}

func (s *server) listProviders(ctx context.Context, c *call, _ none) (list[providerBody], error) {
	found, next, err := s.Providers.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, s.showProvider)
}

func (s *server) createProvider(ctx context.Context, c *call, in newProvider) (providerBody, error) {
	made, err := s.Providers.Create(ctx, c.workspace(),
		providers.NewProvider{ID: c.newID, Name: in.Name, Kind: in.Kind, Channel: in.Channel, Config: in.Config, Secrets: in.Secrets,
			RatePerSecond: in.RatePerSecond})
	return s.showProvider(made), err
}

func (s *server) getProvider(ctx context.Context, c *call, _ none) (providerBody, error) {
	found, err := s.Providers.Get(ctx, c.workspace(), c.id)
	return s.showProvider(found), err
}

func (s *server) updateProvider(ctx context.Context, c *call, in providerPatch) (providerBody, error) {
	changed, err := s.Providers.Update(ctx, c.workspace(), c.id, c.ifMatch, in.patch())
	return s.showProvider(changed), err
}

func (in providerPatch) patch() providers.Patch {
	p := providers.Patch{Name: in.Name, Config: in.Config, Secrets: in.Secrets, NoRate: in.RatePerSecond.Null}
	if in.RatePerSecond.Set && !in.RatePerSecond.Null {
		p.RatePerSecond = &in.RatePerSecond.Value
	}
	return p
}

func (s *server) deleteProvider(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.usedBy(ctx, c, s.Providers.Delete(ctx, c.workspace(), c.id))
}
