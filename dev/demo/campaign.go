package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
)

// campaignDemo creates and sends the demo campaign.
type campaignDemo struct {
	api   *httpClient
	out   io.Writer
	quiet bool // no progress bar: the output is not a terminal
}

const (
	campaignSubject = "{{ name | default: \"Hello\" }}, what is new since {{ last_order_at | default: \"you last came\" }}"
	campaignText    = "Dear {{ name | default: \"friend\" }},\n\nthe shop in {{ city }} has new opening hours.\n\nYours, the demo shop\n\n" +
		"Unsubscribe: {{ unsubscribe_url }}\n"
	campaignHTML = `<!doctype html>
<html><body style="font-family: sans-serif; max-width: 34em; margin: 2em auto">
<h1>Dear {{ name | default: "friend" }},</h1>
<p>the shop in <b>{{ city }}</b> has new opening hours.
{% if last_order_at %}You last ordered on {{ last_order_at }}: time to visit us again.{% else %}Come and visit us.{% endif %}</p>
<p>Yours, the demo shop</p>
<p><a href="{{ unsubscribe_url }}">Unsubscribe</a></p>
</body></html>`
	campaignSQL = "select id, email, name, city, last_order_at::date as last_order_at, opted_out from customers"
)

// send creates what the campaign needs, each once, and sends it unless an earlier
// run did. It returns the campaign as it ended.
func (d *campaignDemo) send(ctx context.Context, shopDSN string, smtpPort int) (campaignView, error) {
	id, err := d.prepare(ctx, shopDSN, smtpPort)
	if err != nil {
		return campaignView{}, err
	}
	now, err := d.get(ctx, id)
	if err != nil {
		return now, err
	}
	switch now.Status {
	case "draft":
		fmt.Fprintln(d.out, "Sending a campaign to all customers of the demo shop.")
		if err := d.api.call(ctx, http.MethodPost, "/campaigns/"+id+"/send", "demo-send-"+id, nil, nil); err != nil {
			return now, err
		}
	case "completed", "cancelled", "failed":
		fmt.Fprintln(d.out, "The demo campaign was sent by an earlier run: no message is sent again.")
		return now, nil
	case "paused":
		if err := d.api.call(ctx, http.MethodPost, "/campaigns/"+id+"/resume", "", nil, nil); err != nil {
			return now, err
		}
	}
	return d.watch(ctx, id)
}

// materials are what the campaigns of all demos need.
type materials struct{ audience, provider string }

// materials creates a data source, an audience and a provider, or finds those of an
// earlier run.
func (d *campaignDemo) materials(ctx context.Context, shopDSN string, smtpPort int) (m materials, err error) {
	source, err := d.api.ensure(ctx, "/data_sources", "Demo shop", map[string]any{"kind": "postgres", "dsn": shopDSN})
	if err != nil {
		return m, err
	}
	aud, err := d.api.ensure(ctx, "/audiences", "All customers", map[string]any{"data_source_id": source.ID, "sql": campaignSQL,
		"key_column": "id", "email_column": "email", "opted_out_column": "opted_out"})
	if err != nil {
		return m, err
	}
	config := map[string]any{"host": "127.0.0.1", "port": smtpPort, "tls": "none"}
	prv, err := d.api.ensure(ctx, "/providers", "Mail catcher", map[string]any{"kind": "smtp", "config": config})
	if err != nil {
		return m, err
	}
	// The catcher may have another port than in the last run.
	err = d.api.call(ctx, http.MethodPatch, "/providers/"+prv.ID, "", map[string]any{"config": config}, nil)
	return materials{aud.ID, prv.ID}, err
}

// prepare creates a campaign and what it needs, or finds those of an earlier run.
func (d *campaignDemo) prepare(ctx context.Context, shopDSN string, smtpPort int) (string, error) {
	m, err := d.materials(ctx, shopDSN, smtpPort)
	if err != nil {
		return "", err
	}
	tpl, err := d.api.ensure(ctx, "/templates", "What is new", map[string]any{"subject": campaignSubject, "html": campaignHTML,
		"text": campaignText})
	if err != nil {
		return "", err
	}
	c, err := d.api.ensure(ctx, "/campaigns", "What is new", map[string]any{"audience_id": m.audience,
		"template_id": tpl.ID, "provider_id": m.provider,
		"from": map[string]any{"name": "Demo shop", "email": "news@shop.example"}})
	return c.ID, err
}

func (d *campaignDemo) get(ctx context.Context, id string) (campaignView, error) {
	var c campaignView
	err := d.api.call(ctx, http.MethodGet, "/campaigns/"+id, "", nil, &c)
	return c, err
}

// watch polls the campaign until it ends and draws its progress.
func (d *campaignDemo) watch(ctx context.Context, id string) (campaignView, error) {
	begun := time.Now()
	for {
		c, err := d.get(ctx, id)
		if err != nil {
			return c, err
		}
		d.draw(c, time.Since(begun))
		if c.FinishedAt != nil || c.Status == "paused" {
			d.endLine()
			return c, nil
		}
		select {
		case <-ctx.Done():
			d.endLine()
			return c, ctx.Err()
		case <-time.After(150 * time.Millisecond):
		}
	}
}

const barWidth = 36

func (d *campaignDemo) draw(c campaignView, took time.Duration) {
	b := c.Counts
	if d.quiet || b.Total == 0 {
		return
	}
	ended := b.Sent + b.Failed + b.Skipped + b.Orphaned + b.Cancelled
	full := int(barWidth * ended / b.Total)
	rate := float64(b.Sent) / took.Seconds()
	left := "-"
	if rate > 0 {
		left = (time.Duration(float64(b.Total-ended)/rate*float64(time.Second)) + time.Second).Truncate(time.Second).String()
	}
	fmt.Fprintf(d.out, "\r  [%s%s] %3d%%  %d of %d  %.0f messages/s  %s left   ",
		strings.Repeat("█", full), strings.Repeat("·", barWidth-full), 100*ended/b.Total, ended, b.Total, rate, left)
}

func (d *campaignDemo) endLine() {
	if !d.quiet {
		fmt.Fprintln(d.out)
	}
}

// Counts are the results of a run: the last line of `lemma dev --once`.
type Counts struct {
	Audience   int64            `json:"audience"`
	Sent       int64            `json:"sent"`
	Skipped    map[string]int64 `json:"skipped"`
	Failed     int64            `json:"failed"`
	Orphaned   int64            `json:"orphaned"`
	Cancelled  int64            `json:"cancelled"`
	Duplicates int64            `json:"duplicates"`
	Seconds    float64          `json:"seconds"`
	Flow       *FlowCounts      `json:"flow"`
}

func countsOf(c campaignView, duplicates int64) Counts {
	n := Counts{Audience: c.Counts.Total, Sent: c.Counts.Sent, Skipped: c.Counts.SkippedBy, Failed: c.Counts.Failed,
		Orphaned: c.Counts.Orphaned, Cancelled: c.Counts.Cancelled, Duplicates: duplicates}
	if c.StartedAt != nil && c.FinishedAt != nil {
		n.Seconds = math.Round(1000*c.FinishedAt.Sub(*c.StartedAt).Seconds()) / 1000
	}
	return n
}

// check returns an error unless every recipient has exactly one outcome.
func (n Counts) check(c campaignView) error {
	var skipped int64
	for _, count := range n.Skipped {
		skipped += count
	}
	switch sum := n.Sent + n.Failed + skipped + n.Orphaned + n.Cancelled; {
	case c.Status != "completed":
		why := ""
		if c.Reason != nil {
			why = " because of " + *c.Reason
		}
		if c.Detail != nil {
			why += ": " + *c.Detail
		}
		return fmt.Errorf("the campaign is %s%s", c.Status, why)
	case sum != n.Audience || !c.Counts.Balanced:
		return fmt.Errorf("the counts are not balanced: %d in the audience, %d with an outcome", n.Audience, sum)
	case n.Duplicates > c.Counts.Retried:
		return fmt.Errorf("the mail catcher saw %d duplicates", n.Duplicates)
	}
	return nil
}

func (n Counts) print(out io.Writer) {
	fmt.Fprintf(out, "\n  audience    %8d\n  sent        %8d\n", n.Audience, n.Sent)
	for _, reason := range sortedKeys(n.Skipped) {
		fmt.Fprintf(out, "  skipped     %8d  %s\n", n.Skipped[reason], reason)
	}
	fmt.Fprintf(out, "  failed      %8d\n  orphaned    %8d\n  cancelled   %8d\n  duplicates  %8d  seen by the mail catcher\n",
		n.Failed, n.Orphaned, n.Cancelled, n.Duplicates)
	if n.Seconds > 0 && n.Sent > 0 {
		fmt.Fprintf(out, "  in %.3g s, %.0f messages/s\n", n.Seconds, float64(n.Sent)/n.Seconds)
	}
}

func (n Counts) json(out io.Writer) error { return json.NewEncoder(out).Encode(n) }
