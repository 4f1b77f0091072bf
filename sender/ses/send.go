package ses

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"

	"lemma"

	"lemma/sender"
	"lemma/sender/mime"
	"lemma/sender/wire"
)

// Send is part of sender.Carrier.
func (c *carrier) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	return c.Each(ctx, messages, c.send)
}

func (c *carrier) send(ctx context.Context, m *sender.Message) sender.Receipt {
	d := c.drafts.Get().(*draft)
	defer c.drafts.Put(d)
	if err := d.write(m, c.configurationSet); err != nil {
		return invalid(err, m)
	}
	header, err := c.sign(ctx, d.body)
	if err != nil {
		return invalid(err, m)
	}
	a, failure := c.Post(ctx, wire.Request{URL: c.url, Header: header, Body: d.body, StartBy: m.StartBy})
	if failure != nil {
		return *failure
	}
	return receiptFor(a, m)
}

func invalid(err error, m *sender.Message) sender.Receipt {
	return sender.Receipt{Outcome: sender.Rejected, Reason: "message_invalid", Detail: sender.Detail(nil, err.Error(), m.To), At: time.Now()}
}

// write writes the body of SendEmail. Package mime has checked the addresses and the
// notification's id, which contain nothing that JSON escapes.
func (d *draft) write(m *sender.Message, configurationSet string) (err error) {
	if d.mail, _, err = d.writer.Append(d.mail[:0], m, mime.Own{}); err != nil {
		return err
	}
	out := d.body[:0]
	out = append(out, `{"FromEmailAddress":"`...)
	out = append(out, m.FromEmail...)
	out = append(out, `","Destination":{"ToAddresses":["`...)
	out = append(out, m.To...)
	out = append(out, `"]},"Content":{"Raw":{"Data":"`...)
	out = base64.StdEncoding.AppendEncode(out, d.mail)
	out = append(out, `"}},"EmailTags":[{"Name":"lemma_ntf","Value":"`...)
	out = append(out, m.Notification...)
	out = append(out, `"},{"Name":"lemma_attempt","Value":"`...)
	out = strconv.AppendInt(out, int64(m.Attempt), 10)
	out = append(out, `"}]`...)
	if configurationSet != "" {
		out = append(out, `,"ConfigurationSetName":"`...)
		out = append(out, configurationSet...)
		out = append(out, '"')
	}
	out = append(out, '}')
	d.body = out
	return nil
}

// sign returns the header of a request, signed by AWS Signature Version 4.
func (c *carrier) sign(ctx context.Context, body []byte) (http.Header, error) {
	to := *c.url // the signer writes it
	r := &http.Request{Method: http.MethodPost, URL: &to, Host: c.url.Host, ContentLength: int64(len(body)),
		Header: http.Header{"Content-Type": {"application/json"}, "User-Agent": {"Lemma"}}}
	sum := sha256.Sum256(body)
	err := c.signer.SignHTTP(ctx, c.keys, r, hex.EncodeToString(sum[:]), "ses", c.region, time.Now())
	return r.Header, lemma.Wrap(err, "sign the request")
}
