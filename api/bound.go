package api

import (
	"fmt"
	"slices"

	"lemma/campaigns"
	"lemma/notifications"
)

// boundBody is how many deliveries of one message are possible, of those that were made
// and those that can still be made.
type boundBody struct {
	Word     string `json:"word"`
	Sentence string `json:"sentence"`
}

// boundOfCampaign is the bound for each recipient. The counts are read after the status, so
// that they are final when it is.
func (s *server) boundOfCampaign(c campaigns.Campaign) boundBody {
	can, n := s.Capabilities(c.ProviderKind), c.Counts
	ended := n.Pending+n.Processing == 0 && slices.Contains([]campaigns.Status{campaigns.Completed, campaigns.Cancelled, campaigns.Failed},
		c.Status)
	switch {
	case c.Strategy == "at_most_once":
		return boundBody{"once", "At most one delivery to each recipient: at_most_once allows no second attempt."}
	case can.IdempotencyKey:
		return boundBody{"once", "At most one delivery to each recipient: the carrier recognises a second attempt."}
	case ended && n.Retried == 0:
		return boundBody{"once", "At most one delivery to each recipient: the campaign has ended, and no second attempt was made."}
	case ended:
		return boundBody{can.twice(), fmt.Sprintf("At most two deliveries: %d notifications got a second attempt, since the outcome of their "+
			"first one was unknown. Every other was delivered at most once.", n.Retried) + can.replacing()}
	}
	return boundBody{can.twice(), "At most two deliveries to each recipient: the second only if the outcome of the first attempt is unknown." +
		can.replacing()}
}

// boundOf is the bound of one notification, as its explanation has it.
func (s *server) boundOf(e notifications.Explanation) *boundBody {
	can := s.Capabilities(e.ProviderKind)
	b := boundBody{Word: can.twice()}
	switch {
	case e.DeliveriesPossible == 0:
		b = boundBody{"never", "No delivery: nothing was accepted by the carrier, and no call follows."}
	case can.IdempotencyKey:
		b = boundBody{"once", "At most one delivery: the carrier recognises a second attempt."}
	case e.DeliveriesPossible == 1:
		b = boundBody{"once", "At most one delivery: no second one has happened, and none is possible any more."}
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
