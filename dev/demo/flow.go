package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lemma"

	"lemma/client"
	"lemma/dev/catcher"
	"lemma/dev/shop"
)

// flowDemo creates and runs the demo flow: a welcome message, a wait, and a nudge
// for profiles that have not bought meanwhile.
type flowDemo struct {
	rest    *httpClient    // for what the Go client does not have
	api     *client.Client // flows, events and enrollments
	out     io.Writer
	shop    shop.Shop
	catcher *catcher.Catcher
	people  int // customers of the shop

	flow     client.Flow
	bought   map[string]time.Time // time of purchase, by profile
	enrolled int                  // signups of this run that enrolled a profile
}

// signup is a customer that signs up in the demo.
type signup struct {
	profile string
	source  string // where; only signups in the shop are enrolled. Empty: the event has no source
	buys    bool
	twice   bool // signs up twice
}

// Of the shop's customers, 11 has no address and 42 has opted out.
var signups = []signup{
	{profile: "1", source: "shop"},
	{profile: "2", source: "shop", buys: true},
	{profile: "3", source: "shop", twice: true},
	{profile: "4", source: "shop"},
	{profile: "5", source: "shop", buys: true},
	{profile: "6", source: "shop"},
	{profile: "8", source: "test"},
	{profile: "9"},
	{profile: "11", source: "shop"},
	{profile: "42", source: "shop"},
}

const (
	flowName  = "Welcome and nudge"
	flowWait  = "PT2S" // a real one would be P2D
	boughtSQL = "select p.profile_key from people p " +
		"join orders o on o.customer_id::text = p.profile_key and o.placed_at between p.enrolled_at and now()"

	// With has, an event without a source is refused as filtered; otherwise the condition would fail.
	triggerCondition = "has(trigger.properties.source) && trigger.properties.source == 'shop'"

	welcomeSubject = `Welcome, {{ name | default: "friend" }}`
	welcomeText    = "Dear {{ name | default: \"friend\" }},\n\nwelcome to the shop in {{ city }}.\n\nYours, the demo shop\n"
	nudgeSubject   = `Still looking around, {{ name | default: "friend" }}?`
	nudgeText      = "Dear {{ name | default: \"friend\" }},\n\nyou have not found anything in {{ city }} yet. " +
		"Here is an idea: visit us.\n\nYours, the demo shop\n"

	// flowTimeout bounds how long the flow may take.
	flowTimeout = 90 * time.Second
)

// run creates and publishes the flow, records signups and purchases, each once in
// the life of a demo, and waits until all enrollments have ended.
func (d *flowDemo) run(ctx context.Context) (FlowCounts, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, flowTimeout, fmt.Errorf("the demo flow has not ended after %v", flowTimeout))
	defer cancel()
	counts, err := d.execute(ctx)
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return counts, context.Canceled
	}
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return counts, err
}

func (d *flowDemo) execute(ctx context.Context) (FlowCounts, error) {
	if err := d.publish(ctx); err != nil {
		return FlowCounts{}, err
	}
	fmt.Fprintln(d.out, "\nThe welcome flow: a message, a wait of 2 seconds, and a nudge for customers that have not bought.")
	if err := d.recordSignups(ctx); err != nil {
		return FlowCounts{}, err
	}
	if d.enrolled == 0 {
		fmt.Fprintln(d.out, "All customers signed up in an earlier run: no profile is enrolled, and no message is sent again.")
	}
	if err := d.await(ctx); err != nil {
		return FlowCounts{}, err
	}
	return d.results(ctx)
}

// publish creates the flow, or finds it, and makes it live.
func (d *flowDemo) publish(ctx context.Context) error {
	for f, err := range d.api.ListFlows(ctx, client.FlowFilter{}) {
		if err != nil {
			return err
		}
		if f.Name == flowName && (d.flow.ID == "" || f.Status != "archived") {
			d.flow = f
		}
	}
	if d.flow.ID == "" {
		definition, err := d.definition(ctx)
		if err != nil {
			return err
		}
		if d.flow, err = d.api.CreateFlow(ctx, client.NewFlow{Name: flowName, Definition: definition}); err != nil {
			return fmt.Errorf("create the demo flow: %w", err)
		}
	}
	return d.makeLive(ctx)
}

func (d *flowDemo) makeLive(ctx context.Context) (err error) {
	switch {
	case d.flow.LiveVersion == nil:
		d.flow, err = d.api.PublishFlowVersion(ctx, d.flow.ID, 1, client.InFlight{Mode: "stay"})
	case d.flow.Status == "paused":
		d.flow, err = d.api.ResumeFlow(ctx, d.flow.ID, client.Resumption{CatchUp: "PT0S"})
	}
	return lemma.Wrap(err, "publish the demo flow")
}

// definition uses the resources of the campaign, and two templates of its own.
func (d *flowDemo) definition(ctx context.Context) (json.RawMessage, error) {
	ids := map[string]string{}
	for name, path := range map[string]string{"All customers": "/audiences", "Mail catcher": "/providers"} {
		found, err := d.rest.find(ctx, path, name)
		if err != nil {
			return nil, err
		}
		ids[name] = found.ID
	}
	for name, body := range map[string]map[string]any{
		"Welcome": {"subject": welcomeSubject, "text": welcomeText},
		"Nudge":   {"subject": nudgeSubject, "text": nudgeText},
	} {
		made, err := d.rest.ensure(ctx, "/templates", name, body)
		if err != nil {
			return nil, err
		}
		ids[name] = made.ID
	}
	type node = map[string]any
	send := func(template, next string) node {
		return node{"type": "send", "channel": "email", "provider_id": ids["Mail catcher"], "template_id": ids[template],
			"from": map[string]any{"name": "Demo shop", "email": "news@shop.example"}, "next": next}
	}
	return json.Marshal(map[string]any{
		"audience_id": ids["All customers"],
		"triggers":    []any{map[string]any{"type": "event", "event": "signed_up", "condition": triggerCondition}},
		"recurrence":  map[string]any{"policy": "once"},
		"start":       "welcome",
		"nodes": map[string]node{
			"welcome": send("Welcome", "wait"),
			"wait":    {"type": "delay", "for": flowWait, "next": "bought"},
			"bought":  {"type": "branch", "cases": []any{map[string]any{"sql": boughtSQL, "next": "happy"}}, "else": "nudge"},
			"nudge":   send("Nudge", "over"),
			"happy":   {"type": "exit", "goal": true},
			"over":    {"type": "exit"},
		},
	})
}

// present are the signups of customers that the shop has.
func (d *flowDemo) present() []signup {
	var all []signup
	for _, s := range signups {
		if n, err := strconv.Atoi(s.profile); err == nil && n <= d.people {
			all = append(all, s)
		}
	}
	return all
}

// isDemo reports whether a profile is one of the demo: others may have been
// enrolled since.
func (d *flowDemo) isDemo(profile string) bool {
	for _, s := range d.present() {
		if s.profile == profile {
			return true
		}
	}
	return false
}

// recordSignups records signups and purchases. Each event has an id, so that a
// later run records no second one.
func (d *flowDemo) recordSignups(ctx context.Context) error {
	d.bought = map[string]time.Time{}
	for _, s := range d.present() {
		if err := d.signUp(ctx, s, "demo-signup-"+s.profile); err != nil {
			return err
		}
		if s.twice {
			if err := d.signUp(ctx, s, "demo-signup-again-"+s.profile); err != nil {
				return err
			}
		}
		if !s.buys {
			continue
		}
		customer, err := strconv.ParseInt(s.profile, 10, 64)
		if err == nil {
			d.bought[s.profile], err = d.shop.Buy(ctx, customer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *flowDemo) signUp(ctx context.Context, s signup, id string) error {
	properties := map[string]string{}
	if s.source != "" {
		properties["source"] = s.source
	}
	raw, err := json.Marshal(properties)
	if err != nil {
		return err
	}
	recorded, err := d.api.RecordEvent(ctx, client.NewEvent{ProfileKey: s.profile, Event: "signed_up", Properties: raw, SourceID: id})
	if err != nil {
		return fmt.Errorf("record a signup: %w", err)
	}
	for _, r := range recorded.Results {
		if recorded.Status == "accepted" && r.Status == "enrolled" {
			d.enrolled++
		}
	}
	return nil
}

// await waits until all enrollments have ended and every message has its outcome.
func (d *flowDemo) await(ctx context.Context) error {
	for {
		active, err := d.active(ctx)
		if err != nil || !active {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (d *flowDemo) active(ctx context.Context) (bool, error) {
	for e, err := range d.api.ListEnrollments(ctx, client.EnrollmentFilter{FlowID: d.flow.ID, Status: "active"}) {
		if err != nil || d.isDemo(e.ProfileKey) {
			return true, err
		}
	}
	sent, err := d.notifications(ctx)
	for _, l := range sent {
		if d.isDemo(l.ProfileKey) && (l.Status == "pending" || l.Status == "processing") {
			return true, err
		}
	}
	return false, err
}

// notification is a notification of the flow.
type notification struct {
	ID         string     `json:"id"`
	Node       *string    `json:"node"`
	ProfileKey string     `json:"profile_key"`
	Address    *string    `json:"address"`
	Status     string     `json:"status"`
	Reason     *string    `json:"reason"`
	EndedAt    *time.Time `json:"ended_at"`
}

// notifications lists the notifications of the flow.
func (d *flowDemo) notifications(ctx context.Context) ([]notification, error) {
	var all []notification
	path := "/notifications?limit=200&flow_id=" + d.flow.ID
	for next := path; ; {
		var page struct {
			Data       []notification `json:"data"`
			NextCursor *string        `json:"next_cursor"`
		}
		if err := d.rest.call(ctx, http.MethodGet, next, "", nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if page.NextCursor == nil {
			return all, nil
		}
		next = path + "&cursor=" + url.QueryEscape(*page.NextCursor)
	}
}

// caught counts the messages of the flow in the mail catcher, by notification.
// Messages without a notification are among them.
func (d *flowDemo) caught(all []notification) map[string]int {
	origins := map[string]bool{}
	for _, l := range all {
		origins[originOf(l.ID)] = true
	}
	caught := map[string]int{}
	for _, e := range d.catcher.Ledger() {
		id, _, _ := strings.Cut(strings.Trim(e.MessageID, "<>"), "@")
		if origins[originOf(id)] {
			caught[id]++
		}
	}
	return caught
}

// originOf is the part of a notification's id that is the same for a flow and month.
func originOf(notification string) string {
	if len(notification) < len("ntf_")+25 {
		return ""
	}
	return notification[:len("ntf_")+25] // 25 characters of 5 bits are within the first 16 bytes
}
