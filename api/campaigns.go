package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/api/strict"
	"lemma/campaigns"
)

type newCampaign struct {
	Name            string            `json:"name"`
	AudienceID      string            `json:"audience_id"`
	TemplateID      string            `json:"template_id"`
	TemplateVersion int               `json:"template_version"`
	ProviderID      string            `json:"provider_id"`
	Strategy        string            `json:"strategy"`
	From            *newFrom          `json:"from"`
	ReplyTo         string            `json:"reply_to" validate:"omitempty,address"`
	Headers         map[string]string `json:"headers" validate:"dive,keys,header_name,not_reserved,endkeys,single_line"`
	Metadata        map[string]string `json:"metadata"`
	Transactional   bool              `json:"transactional"`
	TopicID         *string           `json:"topic_id"`
	Conversion      *conversionBody   `json:"conversion"`
	SendDeadline    *time.Time        `json:"send_deadline"`
	ErrorLimit      *float64          `json:"template_error_limit"`
	Experiment      *experimentBody   `json:"experiment"`
}

type newFrom struct {
	Email string `json:"email" validate:"address"`
	Name  string `json:"name" validate:"single_line"`
}

type campaignPatch struct {
	Name            *string                  `json:"name"`
	AudienceID      *string                  `json:"audience_id"`
	TemplateID      *string                  `json:"template_id"`
	TemplateVersion *int                     `json:"template_version"`
	ProviderID      *string                  `json:"provider_id"`
	Strategy        *string                  `json:"strategy"`
	From            *newFrom                 `json:"from"`
	ReplyTo         optional[string]         `json:"reply_to" validate:"omitempty,address"`
	Headers         map[string]string        `json:"headers" validate:"dive,keys,header_name,not_reserved,endkeys,single_line"`
	Metadata        map[string]string        `json:"metadata"`
	Transactional   *bool                    `json:"transactional"`
	TopicID         optional[string]         `json:"topic_id"`
	Conversion      optional[conversionBody] `json:"conversion"`
	SendDeadline    optional[time.Time]      `json:"send_deadline"`
	ErrorLimit      optional[float64]        `json:"template_error_limit"`

	Experiment optional[experimentBody] `json:"experiment"`
}

func (s *server) listCampaigns(ctx context.Context, c *call, _ none) (list[campaignBody], error) {
	found, next, err := s.Campaigns.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, s.showCampaign)
}

func (s *server) createCampaign(ctx context.Context, c *call, in newCampaign) (campaignBody, error) {
	refs, err := references(&in.AudienceID, &in.TemplateID, &in.ProviderID, in.TopicID)
	if err != nil {
		return campaignBody{}, err
	}
	if in.From == nil {
		in.From = &newFrom{}
	}
	experiment, err := in.Experiment.experiment()
	if err != nil {
		return campaignBody{}, err
	}
	if err := s.mayMeasure(ctx, c, uuid.Nil, experiment); err != nil {
		return campaignBody{}, err
	}
	conversion, err := in.Conversion.conversion()
	if err != nil {
		return campaignBody{}, err
	}
	made, err := s.Campaigns.Create(ctx, c.workspace(),
		campaigns.NewCampaign{ID: c.newID, Name: in.Name, AudienceID: *refs.audience, TemplateID: *refs.template,
			TemplateVersion: in.TemplateVersion, ProviderID: *refs.provider, Strategy: in.Strategy, FromName: in.From.Name, FromEmail: in.From.Email,
			ReplyTo: in.ReplyTo, Headers: in.Headers, Metadata: in.Metadata, Transactional: in.Transactional, TopicID: refs.topic,
			Conversion: conversion, SendDeadline: in.SendDeadline, TemplateErrorLimit: in.ErrorLimit, Experiment: experiment})
	return s.showCampaign(made), err
}

func (s *server) getCampaign(ctx context.Context, c *call, _ none) (campaignBody, error) {
	found, err := s.Campaigns.Get(ctx, c.workspace(), c.id)
	return s.showCampaign(found), err
}

func (s *server) updateCampaign(ctx context.Context, c *call, in campaignPatch) (campaignBody, error) {
	p, err := in.patch()
	if err != nil {
		return campaignBody{}, err
	}
	if err := s.mayMeasure(ctx, c, c.id, p.Experiment); err != nil {
		return campaignBody{}, err
	}
	changed, err := s.Campaigns.Update(ctx, c.workspace(), c.id, c.ifMatch, p)
	return s.showCampaign(changed), err
}

func (in campaignPatch) patch() (campaigns.Patch, error) {
	refs, err := references(in.AudienceID, in.TemplateID, in.ProviderID, in.TopicID.given())
	if err != nil {
		return campaigns.Patch{}, err
	}
	p := campaigns.Patch{Name: in.Name, AudienceID: refs.audience, TemplateID: refs.template, TemplateVersion: in.TemplateVersion,
		ProviderID: refs.provider, Strategy: in.Strategy, Headers: in.Headers, Metadata: in.Metadata, Transactional: in.Transactional,
		TopicID: refs.topic, NoTopic: in.TopicID.Null}
	if in.Conversion.Set {
		conversion, err := in.Conversion.given().conversion()
		if err != nil {
			return campaigns.Patch{}, err
		}
		p.Conversion = &conversion
	}
	if in.From != nil {
		p.FromEmail, p.FromName = &in.From.Email, &in.From.Name
	}
	if in.ReplyTo.Set {
		p.ReplyTo = &in.ReplyTo.Value
	}
	if in.SendDeadline.Set && !in.SendDeadline.Null {
		p.SendDeadline = &in.SendDeadline.Value
	}
	p.NoDeadline = in.SendDeadline.Null
	if in.ErrorLimit.Set && !in.ErrorLimit.Null {
		p.TemplateErrorLimit = &in.ErrorLimit.Value
	}
	p.NoErrorLimit, p.NoExperiment = in.ErrorLimit.Null, in.Experiment.Null
	p.Experiment, err = in.Experiment.given().experiment()
	return p, err
}

func (s *server) deleteCampaign(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.Campaigns.Delete(ctx, c.workspace(), c.id)
}

// referenced are the ids that a campaign's body names, nil where it names none.
type referenced struct{ audience, template, provider, topic *uuid.UUID }

// references parses the ids, and returns the faults of all that are not of the right form.
func references(audience, template, provider, topic *string) (referenced, error) {
	var refs referenced
	var fields []lemma.Field
	for _, ref := range []struct {
		to           **uuid.UUID
		text         *string
		prefix, what string
	}{
		{&refs.audience, audience, lemma.PrefixAudience, "audience"},
		{&refs.template, template, lemma.PrefixTemplate, "template"},
		{&refs.provider, provider, lemma.PrefixProvider, "provider"},
		{&refs.topic, topic, lemma.PrefixTopic, "topic"},
	} {
		if ref.text == nil {
			continue
		}
		id, ok := lemma.ParseID(ref.prefix, *ref.text)
		if !ok {
			fields = append(fields, unknownID("/"+ref.what+"_id", ref.what).Fields...)
		}
		*ref.to = &id
	}
	return refs, strict.Invalid(fields)
}
