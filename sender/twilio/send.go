package twilio

import (
	"context"
	"net/url"
	"strconv"

	"lemma/sender"
	"lemma/sender/wire"
)

// Send is part of sender.Carrier.
func (c *carrier) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	return c.Each(ctx, messages, c.send)
}

func (c *carrier) send(ctx context.Context, m *sender.Message) sender.Receipt {
	a, failure := c.Post(ctx, wire.Request{URL: c.url, Header: c.header, Body: []byte(c.form(m).Encode()), StartBy: m.StartBy})
	if failure != nil {
		return *failure
	}
	return receiptFor(a, m)
}

func (c *carrier) form(m *sender.Message) url.Values {
	form := url.Values{"To": {m.To}, "Body": {m.Text}}
	if c.service != "" {
		form.Set("MessagingServiceSid", c.service)
	} else {
		form.Set("From", c.from)
	}
	if c.validity > 0 {
		form.Set("ValidityPeriod", strconv.Itoa(c.validity))
	}
	if base := c.base(); base != "" {
		form.Set("StatusCallback", base+"/hooks/twilio/"+c.provider+"?n="+m.Notification+"&a="+strconv.Itoa(m.Attempt))
	}
	return form
}

// base is under which Twilio calls back; empty: it does not.
func (c *carrier) base() string {
	if c.publicURL == nil {
		return ""
	}
	return c.publicURL()
}
