package api

import (
	"context"

	"lemma/campaigns"
)

type linkList struct {
	Links []linkBody `json:"links"`
}

type linkBody struct {
	Variant       *string `json:"variant"`
	Number        int     `json:"number"`
	URL           string  `json:"url"`
	Clicks        int64   `json:"clicks"`
	MachineClicks int64   `json:"machine_clicks"`
}

func (s *server) listLinks(ctx context.Context, c *call, _ none) (linkList, error) {
	found, err := s.Campaigns.Links(ctx, c.workspace(), c.id)
	return linkList{each(found, func(l campaigns.Link) linkBody {
		return linkBody{orNull(l.Variant), l.Number, l.URL, l.Clicks, l.MachineClicks}
	})}, err
}
