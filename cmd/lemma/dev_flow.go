package main

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

	"lemma/client"
	"lemma/dev/catcher"
	"lemma/dev/shop"
)

// journey is the demo flow, made and told through the HTTP API: a welcome, a
// wait, and a nudge for whoever has not bought meanwhile.
type journey struct {
	rest    *webClient     // what the Go client leaves out
	api     *client.Client // flows, events and enrollments
	out     io.Writer
	shop    shop.Shop
	catcher *catcher.Catcher
	people  int // customers of the shop

	flow   client.Flow
	bought map[string]time.Time // when, by profile
	fresh  int                  // signups of this run that enrolled somebody
}

// signup is somebody who signs up in the demo.
type signup struct {
	profile string
	source  string // where; only signups in the shop are enrolled. Empty: the event does not say
	buys    bool
	again   bool // signs up twice
}

// signups are the demo's: of the shop's customers, 11 has no address and 42 has
// opted out.
var signups = []signup{
	{profile: "1", source: "shop"},
	{profile: "2", source: "shop", buys: true},
	{profile: "3", source: "shop", again: true},
	{profile: "4", source: "shop"},
	{profile: "5", source: "shop", buys: true},
	{profile: "6", source: "shop"},
	{profile: "8", source: "test"},
	{profile: "9"},
	{profile: "11", source: "shop"},
	{profile: "42", source: "shop"},
}

const (
	demoFlowName = "Welcome and nudge"
	demoWait     = "PT2S" // a real one would be P2D
	demoBought   = "select p.profile_key from people p join orders o on o.customer_id::text = p.profile_key and o.placed_at between p.enrolled_at and now()"

	// demoCondition refuses an event that does not say where as filtered: without has it could not be decided.
	demoCondition = "has(trigger.properties.source) && trigger.properties.source == 'shop'"

	welcomeSubject = `Welcome, {{ name | default: "friend" }}`
	welcomeText    = "Dear {{ name | default: \"friend\" }},\n\nwelcome to the shop in {{ city }}.\n\nYours, the demo shop\n"
	nudgeSubject   = `Still looking around, {{ name | default: "friend" }}?`
	nudgeText      = "Dear {{ name | default: \"friend\" }},\n\nyou have not found anything in {{ city }} yet. Here is an idea: come by.\n\nYours, the demo shop\n"

	// demoPatience is how long the walk through the flow may take.
	demoPatience = 90 * time.Second
)

// run makes the flow, publishes it, tells who signed up and lets some of them
// buy, each once in the life of a demo, and waits until everybody is through.
func (j *journey) run(ctx context.Context) (journeyBooks, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoPatience, fmt.Errorf("the demo flow was not through after %v", demoPatience))
	defer cancel()
	books, err := j.walk(ctx)
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return books, context.Canceled
	}
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return books, err
}

func (j *journey) walk(ctx context.Context) (journeyBooks, error) {
	if err := j.publish(ctx); err != nil {
		return journeyBooks{}, err
	}
	fmt.Fprintln(j.out, "\nThe welcome flow: a letter, a wait of 2 seconds, and a nudge for whoever has not bought.")
	if err := j.tell(ctx); err != nil {
		return journeyBooks{}, err
	}
	if j.fresh == 0 {
		fmt.Fprintln(j.out, "Everybody has signed up before: nobody is enrolled, and nobody is sent anything again.")
	}
	if err := j.await(ctx); err != nil {
		return journeyBooks{}, err
	}
	return j.books(ctx)
}

// publish makes the flow live, or finds it so.
func (j *journey) publish(ctx context.Context) error {
	for f, err := range j.api.ListFlows(ctx, client.FlowFilter{}) {
		if err != nil {
			return err
		}
		if f.Name == demoFlowName && (j.flow.ID == "" || f.Status != "archived") {
			j.flow = f
		}
	}
	if j.flow.ID == "" {
		definition, err := j.definition(ctx)
		if err != nil {
			return err
		}
		if j.flow, err = j.api.CreateFlow(ctx, client.NewFlow{Name: demoFlowName, Definition: definition}); err != nil {
			return fmt.Errorf("make the demo flow: %w", err)
		}
	}
	return j.liven(ctx)
}

func (j *journey) liven(ctx context.Context) (err error) {
	switch {
	case j.flow.LiveVersion == nil:
		j.flow, err = j.api.PublishFlowVersion(ctx, j.flow.ID, 1, client.InFlight{Mode: "stay"})
	case j.flow.Status == "paused":
		j.flow, err = j.api.ResumeFlow(ctx, j.flow.ID, client.Resumption{Spread: "PT0S"})
	}
	if err != nil {
		return fmt.Errorf("publish the demo flow: %w", err)
	}
	return nil
}

// definition names what the campaign has made, and two templates of its own.
func (j *journey) definition(ctx context.Context) (json.RawMessage, error) {
	ids := map[string]string{}
	for name, path := range map[string]string{"Everybody": "/audiences", "Mail catcher": "/providers"} {
		found, err := j.rest.find(ctx, path, name)
		if err != nil {
			return nil, err
		}
		ids[name] = found.ID
	}
	for name, body := range map[string]map[string]any{
		"Welcome": {"subject": welcomeSubject, "text": welcomeText},
		"Nudge":   {"subject": nudgeSubject, "text": nudgeText},
	} {
		made, err := j.rest.ensure(ctx, "/templates", name, body)
		if err != nil {
			return nil, err
		}
		ids[name] = made.ID
	}
	type node = map[string]any
	letter := func(template, next string) node {
		return node{"type": "send", "channel": "email", "provider_id": ids["Mail catcher"], "template_id": ids[template],
			"from": map[string]any{"name": "Demo shop", "email": "news@shop.example"}, "next": next}
	}
	return json.Marshal(map[string]any{
		"audience_id": ids["Everybody"],
		"triggers":    []any{map[string]any{"type": "event", "event": "signed_up", "condition": demoCondition}},
		"recurrence":  map[string]any{"policy": "once"},
		"start":       "welcome",
		"nodes": map[string]node{
			"welcome": letter("Welcome", "wait"),
			"wait":    {"type": "delay", "for": demoWait, "next": "bought"},
			"bought":  {"type": "branch", "cases": []any{map[string]any{"sql": demoBought, "next": "happy"}}, "else": "nudge"},
			"nudge":   letter("Nudge", "over"),
			"happy":   {"type": "exit", "goal": true},
			"over":    {"type": "exit"},
		},
	})
}

// present are the signups of customers that the shop has.
func (j *journey) present() []signup {
	var all []signup
	for _, s := range signups {
		if n, err := strconv.Atoi(s.profile); err == nil && n <= j.people {
			all = append(all, s)
		}
	}
	return all
}

// mine tells the demo's own people from whom somebody else has enrolled since.
func (j *journey) mine(profile string) bool {
	for _, s := range j.present() {
		if s.profile == profile {
			return true
		}
	}
	return false
}

// tell tells who signed up. Each event has an id, so that a later run tells
// nothing new.
func (j *journey) tell(ctx context.Context) error {
	j.bought = map[string]time.Time{}
	for _, s := range j.present() {
		if err := j.signUp(ctx, s, "demo-signup-"+s.profile); err != nil {
			return err
		}
		if s.again {
			if err := j.signUp(ctx, s, "demo-signup-again-"+s.profile); err != nil {
				return err
			}
		}
		if !s.buys {
			continue
		}
		customer, err := strconv.ParseInt(s.profile, 10, 64)
		if err == nil {
			j.bought[s.profile], err = j.shop.Buy(ctx, customer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (j *journey) signUp(ctx context.Context, s signup, id string) error {
	said := map[string]string{}
	if s.source != "" {
		said["source"] = s.source
	}
	properties, err := json.Marshal(said)
	if err != nil {
		return err
	}
	told, err := j.api.RecordEvent(ctx, client.NewEvent{ProfileKey: s.profile, Event: "signed_up", Properties: properties, ID: id})
	if err != nil {
		return fmt.Errorf("tell the demo flow: %w", err)
	}
	for _, r := range told.Results {
		if told.Status == "accepted" && r.Result == "enrolled" {
			j.fresh++
		}
	}
	return nil
}

// await waits until nobody is on the way and every letter has its outcome.
func (j *journey) await(ctx context.Context) error {
	for {
		going, err := j.going(ctx)
		if err != nil || !going {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (j *journey) going(ctx context.Context) (bool, error) {
	for e, err := range j.api.ListEnrollments(ctx, client.EnrollmentFilter{FlowID: j.flow.ID, Status: "active"}) {
		if err != nil || j.mine(e.ProfileKey) {
			return true, err
		}
	}
	letters, err := j.letters(ctx)
	for _, l := range letters {
		if j.mine(l.ProfileKey) && (l.Status == "pending" || l.Status == "processing") {
			return true, err
		}
	}
	return false, err
}

// letter is a notification of the flow.
type letter struct {
	ID         string     `json:"id"`
	Node       *string    `json:"node"`
	ProfileKey string     `json:"profile_key"`
	Address    *string    `json:"address"`
	Status     string     `json:"status"`
	Reason     *string    `json:"reason"`
	EndedAt    *time.Time `json:"ended_at"`
}

// letters reads all of the flow's notifications.
func (j *journey) letters(ctx context.Context) ([]letter, error) {
	var all []letter
	path := "/notifications?limit=200&flow_id=" + j.flow.ID
	for next := path; ; {
		var page struct {
			Data       []letter `json:"data"`
			NextCursor *string  `json:"next_cursor"`
		}
		if err := j.rest.call(ctx, http.MethodGet, next, "", nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if page.NextCursor == nil {
			return all, nil
		}
		next = path + "&cursor=" + url.QueryEscape(*page.NextCursor)
	}
}

// caught is how often the catcher has each of the flow's mails. A mail of the
// flow that nobody wrote into the ledger is among them.
func (j *journey) caught(letters []letter) map[string]int {
	origins := map[string]bool{}
	for _, l := range letters {
		origins[originOf(l.ID)] = true
	}
	copies := map[string]int{}
	for _, e := range j.catcher.Ledger() {
		id, _, _ := strings.Cut(strings.Trim(e.MessageID, "<>"), "@")
		if origins[originOf(id)] {
			copies[id]++
		}
	}
	return copies
}

// originOf is the half of a notification's id that all of a flow's month share.
func originOf(notification string) string {
	if len(notification) < len("ntf_")+25 {
		return ""
	}
	return notification[:len("ntf_")+25] // 25 characters of 5 bits are within the first 16 bytes
}
