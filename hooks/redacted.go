package hooks

import (
	"context"

	"lemma/events"
	"lemma/sender"
)

// receive calls the receiver of an account. What it returns has no secret of the account:
// all reports enter Lemma here, those of mails (LMTP) too, so that no receiver can forget to
// remove one. What a detail cuts off is removed by sender.Detail.
//
// An address that contains a long secret is left out. One with a short secret is kept: that
// may be a word in a normal address, which a bounce or a complaint must suppress.
func (a *account) receive(ctx context.Context, w sender.WebhookRequest) ([]events.Report, error) {
	w.Redact = a.secrets
	reports, err := a.receiver.Receive(ctx, w)
	for i := range reports {
		r := &reports[i]
		r.ID = a.secrets.ID(r.ID) // two reports must not get one id
		if a.secrets.InAddress(r.Address) {
			r.Address = ""
		}
		r.CarrierID, r.Reason, r.Detail = a.secrets.Text(r.CarrierID), a.secrets.Text(r.Reason), a.secrets.Text(r.Detail)
	}
	return reports, a.secrets.Error(err)
}
