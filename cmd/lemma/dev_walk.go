package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// walk is the demo campaign, made and sent through the HTTP API.
type walk struct {
	api   *webClient
	out   io.Writer
	quiet bool // no progress bar: the output is not a terminal
}

const (
	demoSubject = "{{ name | default: \"Hello\" }}, what is new since {{ last_order_at | default: \"you last came\" }}"
	demoText    = "Dear {{ name | default: \"friend\" }},\n\nthe shop in {{ city }} has new opening hours.\n\nYours, the demo shop\n"
	demoHTML    = `<!doctype html>
<html><body style="font-family: sans-serif; max-width: 34em; margin: 2em auto">
<h1>Dear {{ name | default: "friend" }},</h1>
<p>the shop in <b>{{ city }}</b> has new opening hours.
{% if last_order_at %}You last ordered on {{ last_order_at }}: time to come by again.{% else %}Come and have a look.{% endif %}</p>
<p>Yours, the demo shop</p>
</body></html>`
	demoSQL = "select id, email, name, city, last_order_at::date as last_order_at, opted_out from customers"
)

// send makes the demo's things, each once, and sends the campaign unless that
// has been done before. It answers with the campaign as it ended.
func (w *walk) send(ctx context.Context, shopDSN string, smtpPort int) (campaignView, error) {
	id, err := w.prepare(ctx, shopDSN, smtpPort)
	if err != nil {
		return campaignView{}, err
	}
	now, err := w.get(ctx, id)
	if err != nil {
		return now, err
	}
	switch now.Status {
	case "draft":
		fmt.Fprintln(w.out, "Sending a campaign to everybody in the demo shop.")
		if err := w.api.call(ctx, http.MethodPost, "/campaigns/"+id+"/send", "demo-send-"+id, nil, nil); err != nil {
			return now, err
		}
	case "completed", "cancelled", "failed":
		fmt.Fprintln(w.out, "The demo campaign has been sent before: nobody is sent anything again.")
		return now, nil
	case "paused":
		if err := w.api.call(ctx, http.MethodPost, "/campaigns/"+id+"/resume", "", nil, nil); err != nil {
			return now, err
		}
	}
	return w.watch(ctx, id)
}

// prepare makes a data source, an audience, a template, a provider and a
// campaign, or finds those of an earlier run.
func (w *walk) prepare(ctx context.Context, shopDSN string, smtpPort int) (string, error) {
	source, err := w.api.ensure(ctx, "/data_sources", "Demo shop", map[string]any{"kind": "postgres", "dsn": shopDSN})
	if err != nil {
		return "", err
	}
	aud, err := w.api.ensure(ctx, "/audiences", "Everybody", map[string]any{"data_source_id": source.ID, "sql": demoSQL,
		"key_column": "id", "email_column": "email", "opted_out_column": "opted_out"})
	if err != nil {
		return "", err
	}
	tpl, err := w.api.ensure(ctx, "/templates", "What is new", map[string]any{"subject": demoSubject, "html": demoHTML, "text": demoText})
	if err != nil {
		return "", err
	}
	config := map[string]any{"host": "127.0.0.1", "port": smtpPort, "tls": "none"}
	prv, err := w.api.ensure(ctx, "/providers", "Mail catcher", map[string]any{"kind": "smtp", "config": config})
	if err != nil {
		return "", err
	}
	// The catcher may have had to take another port than last time.
	if err := w.api.call(ctx, http.MethodPatch, "/providers/"+prv.ID, "", map[string]any{"config": config}, nil); err != nil {
		return "", err
	}
	c, err := w.api.ensure(ctx, "/campaigns", "What is new", map[string]any{"audience_id": aud.ID, "template_id": tpl.ID, "provider_id": prv.ID,
		"from": map[string]any{"name": "Demo shop", "email": "news@shop.example"}})
	return c.ID, err
}

func (w *walk) get(ctx context.Context, id string) (campaignView, error) {
	var c campaignView
	err := w.api.call(ctx, http.MethodGet, "/campaigns/"+id, "", nil, &c)
	return c, err
}

// watch polls the campaign to its end and draws how far it is.
func (w *walk) watch(ctx context.Context, id string) (campaignView, error) {
	begun := time.Now()
	for {
		c, err := w.get(ctx, id)
		if err != nil {
			return c, err
		}
		w.draw(c, time.Since(begun))
		if c.FinishedAt != nil || c.Status == "paused" {
			w.endLine()
			return c, nil
		}
		select {
		case <-ctx.Done():
			w.endLine()
			return c, ctx.Err()
		case <-time.After(150 * time.Millisecond):
		}
	}
}

const barWidth = 36

func (w *walk) draw(c campaignView, took time.Duration) {
	b := c.Books
	if w.quiet || b.Audience == 0 {
		return
	}
	ended := b.Sent + b.Failed + b.Skipped + b.Orphaned + b.Cancelled
	full := int(barWidth * ended / b.Audience)
	rate := float64(b.Sent) / took.Seconds()
	left := "-"
	if rate > 0 {
		left = (time.Duration(float64(b.Audience-ended)/rate*float64(time.Second)) + time.Second).Truncate(time.Second).String()
	}
	fmt.Fprintf(w.out, "\r  [%s%s] %3d%%  %d of %d  %.0f mails/s  %s left   ",
		strings.Repeat("█", full), strings.Repeat("·", barWidth-full), 100*ended/b.Audience, ended, b.Audience, rate, left)
}

func (w *walk) endLine() {
	if !w.quiet {
		fmt.Fprintln(w.out)
	}
}

// demoBooks is the last line of `lemma dev --once`.
type demoBooks struct {
	Audience   int64            `json:"audience"`
	Sent       int64            `json:"sent"`
	Skipped    map[string]int64 `json:"skipped"`
	Failed     int64            `json:"failed"`
	Orphaned   int64            `json:"orphaned"`
	Cancelled  int64            `json:"cancelled"`
	Duplicates int64            `json:"duplicates"`
	Seconds    float64          `json:"seconds"`
	Flow       *journeyBooks    `json:"flow"`
}

func booksOf(c campaignView, duplicates int64) demoBooks {
	b := demoBooks{Audience: c.Books.Audience, Sent: c.Books.Sent, Skipped: c.Books.SkippedBy, Failed: c.Books.Failed,
		Orphaned: c.Books.Orphaned, Cancelled: c.Books.Cancelled, Duplicates: duplicates}
	if c.StartedAt != nil && c.FinishedAt != nil {
		b.Seconds = round(c.FinishedAt.Sub(*c.StartedAt).Seconds())
	}
	return b
}

// balance says what is wrong with the books; nil when everybody is accounted for.
func (b demoBooks) balance(c campaignView) error {
	var skipped int64
	for _, n := range b.Skipped {
		skipped += n
	}
	switch sum := b.Sent + b.Failed + skipped + b.Orphaned + b.Cancelled; {
	case c.Status != "completed":
		why := ""
		if c.Reason != nil {
			why = " because of " + *c.Reason
		}
		if c.Detail != nil {
			why += ": " + *c.Detail
		}
		return fmt.Errorf("the campaign is %s%s", c.Status, why)
	case sum != b.Audience || !c.Books.Balanced:
		return fmt.Errorf("the books do not balance: %d in the audience, %d accounted for", b.Audience, sum)
	case b.Duplicates > c.Books.Retried:
		return fmt.Errorf("the mail catcher saw %d duplicates", b.Duplicates)
	}
	return nil
}

func (b demoBooks) print(out io.Writer) {
	fmt.Fprintf(out, "\n  audience    %8d\n  sent        %8d\n", b.Audience, b.Sent)
	for _, reason := range sortedKeys(b.Skipped) {
		fmt.Fprintf(out, "  skipped     %8d  %s\n", b.Skipped[reason], reason)
	}
	fmt.Fprintf(out, "  failed      %8d\n  orphaned    %8d\n  cancelled   %8d\n  duplicates  %8d  seen by the mail catcher\n", b.Failed, b.Orphaned, b.Cancelled, b.Duplicates)
	if b.Seconds > 0 && b.Sent > 0 {
		fmt.Fprintf(out, "  in %.3g s, %.0f mails/s\n", b.Seconds, float64(b.Sent)/b.Seconds)
	}
}

func (b demoBooks) json(out io.Writer) error { return json.NewEncoder(out).Encode(b) }
