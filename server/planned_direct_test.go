package server

import (
	"encoding/json"
	"errors"
	"time"

	"lemma"
	"lemma/direct"
)

// direct requests notifications under keys, to addresses and to profiles, by all answers
// that a key can have.
func (p *planned) direct() {
	ctx, later := p.T.Context(), time.Now().Add(time.Hour)
	request := func(key string, to direct.To, at *time.Time) direct.Request {
		return direct.Request{ID: lemma.NewID(), Key: key, To: to, TemplateID: &p.Template, ProviderID: &p.Provider, SendAt: at,
			Strategy: direct.AtLeastOnce, Email: direct.Envelope{FromEmail: "hi@shop.example"},
			Data: map[string]json.RawMessage{"name": json.RawMessage(`"Ada"`)}}
	}
	address, profile := direct.To{Address: "ada@shop.example"}, direct.To{ProfileKey: "1", AudienceID: &p.Audience}
	for range 2 { // the second time, the keys are locked
		for key, to := range map[string]direct.To{"": address, "now": address, "of": profile} {
			_, err := p.Direct.Send(ctx, p.Workspace, request(key, to, &later))
			if _, locked := errors.AsType[*direct.Locked](err); !locked {
				p.Must(err)
			}
		}
		_, err := p.Direct.SendAll(ctx, p.Workspace, []direct.Request{request("", address, nil), request("bulk", profile, nil)})
		p.Must(err)
	}
	again := request("again", address, &later)
	sent, err := p.Direct.Send(ctx, p.Workspace, again)
	p.Must(err)
	again.Again = true
	_, err = p.Direct.Send(ctx, p.Workspace, again)
	p.Must(err)
	_, err = p.Server.Ledger.CancelOne(ctx, p.Workspace, sent.Notification.OriginID, sent.Notification.Key)
	p.Must(err)
	p.ExecDB(`alter table people rename to away`)
	if _, err := p.Direct.Send(ctx, p.Workspace, request("unread", profile, nil)); err == nil {
		p.T.Error("a profile of a table that is gone was sent to")
	}
	p.ExecDB(`alter table away rename to people`)
	p.Exec(`insert into direct_key_periods (id, began_at) values ('00000000-0000-0000-0000-000000000001', now() - interval '1 year')`)
	p.Must(p.Direct.Turn(ctx))
}
