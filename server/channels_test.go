package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/audience"
	"lemma/flows"
	"lemma/flows/intake"
	"lemma/message"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/sendertest"
)

// inbox receives what the carrier was given.
type inbox chan sender.Message

func (i inbox) accept(m sender.Message, _ int) sender.Receipt {
	m.HTML, _, _ = strings.Cut(m.HTML, "<img ") // the pixel that counts opens
	i <- sender.Message{To: m.To, FromEmail: m.FromEmail, Subject: m.Subject, HTML: m.HTML, Text: m.Text, Link: m.Link, Data: m.Data}
	return sender.Receipt{}
}

// next returns n messages by their address.
func (i inbox) next(t *testing.T, n int) map[string]sender.Message {
	t.Helper()
	all, late := map[string]sender.Message{}, time.After(30*time.Second)
	for range n {
		select {
		case m := <-i:
			all[m.To] = m
		case <-late:
			t.Fatalf("%d of %d messages are sent", len(all), n)
		}
	}
	return all
}

// A flow sends one message per channel to a profile: a push to each of its devices.
func TestAFlowSendsOverEachChannel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	f := shop.New(pgtest.NewShop(t, `create table people (id text, email text, phone text, tokens jsonb)`,
		`insert into people values ('anna', 'Anna@shop.example', '(030) 123401', '["ios-1", "web-2", "ios-1"]')`), shop.Local, nil)
	got := make(inbox, 10)
	carrier := &sendertest.Carrier{Script: got.accept}
	kind := carrier.Kind()
	kind.Channels = []lemma.Channel{lemma.Email, lemma.SMS, lemma.Push}
	s, err := New(Deps{Pool: f.Pool, Box: f.Box, Log: slog.New(slog.DiscardHandler), Kinds: []sender.Kind{kind}}, Config{
		PublicURL: "https://lemma.shop.example", Sources: shop.Local, Flows: flows.Config{Poll: 5 * time.Millisecond}})
	f.Must(err)
	ws := f.Workspace
	people, err := s.Audiences.Create(ctx, ws, audience.NewAudience{ID: lemma.NewID(), DataSourceID: f.NewSource(f.DSN), Name: "people",
		SQL: "select * from people", KeyColumn: "id", EmailColumn: "email", PhoneColumn: "phone", PhoneRegion: "DE", PushColumn: "tokens"})
	f.Must(err)
	nodes := map[string]any{"end": map[string]any{"type": "exit"}}
	next := "end"
	for channel, content := range map[lemma.Channel]message.Content{
		lemma.Email: {Subject: "Hi {{ id }}", HTML: "<p>Hi {{ id }}</p>"},
		lemma.SMS:   {Channel: lemma.SMS, Text: "{{ trigger.properties.order }} is <here>"},
		lemma.Push: {Channel: lemma.Push, Subject: "Order", Text: "{{ trigger.properties.order }}", Link: "myapp://orders",
			Data: map[string]string{"order": "{{ trigger.properties.order }}"}},
	} {
		provider, err := s.Providers.Create(ctx, ws,
			providers.NewProvider{ID: lemma.NewID(), Name: string(channel), Kind: "scripted", Channel: channel})
		f.Must(err)
		nodes[string(channel)] = map[string]any{"type": "send", "channel": channel, "next": next,
			"provider_id": lemma.FormatID(lemma.PrefixProvider, provider.ID),
			"template_id": lemma.FormatID(lemma.PrefixTemplate, f.NewTemplate(content))}
		next = string(channel)
	}
	definition, err := json.Marshal(map[string]any{"audience_id": lemma.FormatID(lemma.PrefixAudience, people.ID),
		"triggers":   []any{map[string]any{"type": "event", "event": "ordered"}},
		"recurrence": map[string]any{"policy": "once"}, "defaults": map[string]any{"from": map[string]any{"email": "news@shop.example"}},
		"start": next, "nodes": nodes})
	f.Must(err)
	flow, err := s.Flows.Create(ctx, ws, flows.NewFlow{ID: lemma.NewID(), Name: "orders", Definition: definition})
	f.Must(err)
	_, err = s.Flows.Publish(ctx, ws, flow.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	f.Must(err)
	f.Must(s.StartWorkers(context.WithoutCancel(ctx)))
	t.Cleanup(func() { _ = s.Stop() })
	_, err = s.Flows.Intake.Record(ctx, ws,
		intake.Event{ProfileKey: "anna", Name: "ordered", Properties: json.RawMessage(`{"order":"A & B"}`)})
	f.Must(err)

	push := sender.Message{Subject: "Order", Text: "A & B", Link: "myapp://orders", Data: map[string]string{"order": "A & B"}}
	first, second := push, push
	first.To, second.To = "ios-1", "web-2"
	want := map[string]sender.Message{
		"Anna@shop.example": {To: "Anna@shop.example", FromEmail: "news@shop.example", Subject: "Hi anna", HTML: "<p>Hi anna</p>",
			Text: "Hi anna"},
		"+4930123401": {To: "+4930123401", Text: "A & B is <here>"},
		"ios-1":       first, "web-2": second,
	}
	if diff := cmp.Diff(want, got.next(t, len(want))); diff != "" {
		t.Error(diff)
	}
	channels := pgtest.One[string](t, f.Pool, `
		select string_agg(channel || ' ' || n, ',' order by channel) from (
			select channel, count(*) as n from notification_status where workspace_id = $1 group by channel) c`, ws)
	if channels != "email 1,push 2,sms 1" {
		t.Errorf("notifications: %s", channels)
	}
}

func TestRowsAreComparedInCanonicalForm(t *testing.T) {
	t.Parallel()
	row := audience.Row{Email: " Anna@Shop.example ", Phone: "030 123401", Region: "DE", Push: `["a","b","a",null]`, OptedOut: true}
	for channel, want := range map[lemma.Channel][]string{
		lemma.Email: {"anna@shop.example"}, lemma.SMS: {"+4930123401"}, lemma.Push: {"a", "b"},
	} {
		if diff := cmp.Diff(sender.AudienceRow{Addresses: want, OptedOut: true}, rowNow(row, channel)); diff != "" {
			t.Error(channel, diff)
		}
	}
	if now := rowNow(audience.Row{Phone: "none"}, lemma.SMS); len(now.Addresses) != 0 {
		t.Error(now)
	}
}
