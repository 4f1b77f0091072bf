package api

import (
	"fmt"
	"slices"

	"lemma/campaigns"
	"lemma/client"
	"lemma/notifications"
)

// boundOfCampaign is the bound for each recipient. The counts are read after the status, so
// that they are final when it is.
func (s *server) boundOfCampaign(c campaigns.Campaign) client.DeliveryBound {
	can, n := s.Capabilities(c.ProviderKind), c.Counts
	ended := n.Pending+n.Processing == 0 && slices.Contains([]campaigns.Status{campaigns.Completed, campaigns.Cancelled, campaigns.Failed},
		c.Status)
	switch {
	case c.Strategy == "at_most_once":
		return possible("once", "At most one delivery to each recipient: at_most_once allows no second attempt.")
	case can.IdempotencyKey:
		return possible("once", "At most one delivery to each recipient: the carrier recognises a second attempt.")
	case ended && n.Retried == 0:
		return possible("once", "At most one delivery to each recipient: the campaign has ended, and no second attempt was made.")
	case ended:
		return possible(can.twice(), fmt.Sprintf("At most two deliveries: %d notifications got a second attempt, since the outcome of their "+
			"first one was unknown. Every other was delivered at most once.", n.Retried)+can.replacing())
	}
	return possible(can.twice(), "At most two deliveries to each recipient: the second only if the outcome of the first attempt is unknown."+
		can.replacing())
}

func possible(word, sentence string) client.DeliveryBound {
	return client.DeliveryBound{Word: word, Sentence: sentence}
}

// boundOf is the bound of one notification, as its explanation has it.
func (s *server) boundOf(e notifications.Explanation) *client.DeliveryBound {
	can := s.Capabilities(e.ProviderKind)
	b := client.DeliveryBound{Word: can.twice()}
	switch {
	case e.DeliveriesPossible == 0:
		b = possible("never", "No delivery: nothing was accepted by the carrier, and no call follows.")
	case can.IdempotencyKey:
		b = possible("once", "At most one delivery: the carrier recognises a second attempt.")
	case e.DeliveriesPossible == 1:
		b = possible("once", "At most one delivery: no second one has happened, and none is possible any more.")
	case e.DeliveriesAtLeast > 1:
		b.Sentence = "Two deliveries: the carrier accepted both attempts." + can.replacing()
	case e.DeliveriesAtMost > 1:
		b.Sentence = "At most two deliveries: both attempts may have been accepted." + can.replacing()
	default:
		b.Sentence = "At most two deliveries: the second only if the outcome of the first attempt is unknown." + can.replacing()
	}
	return &b
}

// twice is the word for two deliveries.
func (c Capabilities) twice() string {
	if c.Collapse {
		return "replaced"
	}
	return "twice"
}

// replacing is what a device does with a second delivery; empty if it shows both.
func (c Capabilities) replacing() string {
	if !c.Collapse {
		return ""
	}
	return " The second replaces the first while that is not delivered, or is still shown on the device."
}
