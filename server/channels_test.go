package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows"
	"lemma/flows/intake"
	"lemma/message"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/secrets"
	"lemma/sender"
	"lemma/sender/sendertest"
)

// inbox keeps what the carrier was given, by address.
type inbox struct {
	mu       sync.Mutex
	messages map[string]sender.Message
}

func (i *inbox) accept(m sender.Message, _ int) sender.Receipt {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.messages[m.To] = sender.Message{To: m.To, FromEmail: m.FromEmail, Subject: m.Subject, HTML: m.HTML, Text: m.Text, Link: m.Link,
		Data: m.Data}
	return sender.Receipt{}
}

func (i *inbox) all() map[string]sender.Message {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.messages)
}

// A flow sends one message per channel to a profile: a push to each of its devices.
func TestAFlowSendsOverEachChannel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pool, shop := pgtest.DB(t), pgtest.Empty(t)
	box, err := secrets.ParseKeys(secrets.NewKey())
	must(err)
	got := &inbox{messages: map[string]sender.Message{}}
	carrier := &sendertest.Carrier{Script: got.accept}
	kind := carrier.Kind()
	kind.Channels = []lemma.Channel{lemma.Email, lemma.SMS, lemma.Push}
	s, err := New(Deps{Pool: pool, Box: box, Log: slog.New(slog.DiscardHandler), Kinds: []sender.Kind{kind}}, Config{
		Sources: audience.Options{AllowPrivate: true, AllowUnix: true}, Flows: flows.Config{Poll: 5 * time.Millisecond}})
	must(err)
	ws := pgtest.Workspace(t, pool)
	role := "reader_" + uuid.NewString()[:8]
	for _, sql := range []string{
		`create table people (id text, email text, phone text, tokens jsonb)`,
		`insert into people values ('anna', 'Anna@shop.example', '(030) 123401', '["ios-1", "web-2", "ios-1"]')`,
		`create role ` + role + ` login`, `grant select on people to ` + role, `revoke create on schema public from public`,
	} {
		_, err := shop.Exec(ctx, sql)
		must(err)
	}
	t.Cleanup(func() { _, _ = shop.Exec(context.Background(), `drop owned by `+role+`; drop role `+role) })
	at := shop.Config().ConnConfig
	source, err := s.Audiences.CreateSource(ctx, ws, audience.NewSource{ID: lemma.NewID(), Name: "shop", Kind: "postgres",
		DSN: "postgres://" + role + "@/" + at.Database + "?host=" + url.QueryEscape(at.Host)})
	must(err)
	people, err := s.Audiences.Create(ctx, ws, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source.ID, Name: "people",
		SQL: "select * from people", KeyColumn: "id", EmailColumn: "email", PhoneColumn: "phone", PhoneRegion: "DE", PushColumn: "tokens"})
	must(err)
	nodes := map[string]any{"end": map[string]any{"type": "exit"}}
	next := "end"
	for channel, content := range map[lemma.Channel]message.Content{
		lemma.Email: {Subject: "Hi {{ id }}", HTML: "<p>Hi {{ id }}</p>"},
		lemma.SMS:   {Channel: lemma.SMS, Text: "{{ trigger.properties.order }} is <here>"},
		lemma.Push: {Channel: lemma.Push, Subject: "Order", Text: "{{ trigger.properties.order }}", Link: "myapp://orders",
			Data: map[string]string{"order": "{{ trigger.properties.order }}"}},
	} {
		template, err := s.Templates.Create(ctx, ws, message.NewTemplate{ID: lemma.NewID(), Name: string(channel), Content: content})
		must(err)
		provider, err := s.Providers.Create(ctx, ws,
			providers.NewProvider{ID: lemma.NewID(), Name: string(channel), Kind: "scripted", Channel: channel})
		must(err)
		nodes[string(channel)] = map[string]any{"type": "send", "channel": channel, "next": next,
			"provider_id": lemma.FormatID(lemma.PrefixProvider, provider.ID), "template_id": lemma.FormatID(lemma.PrefixTemplate, template.ID)}
		next = string(channel)
	}
	definition, err := json.Marshal(map[string]any{"audience_id": lemma.FormatID(lemma.PrefixAudience, people.ID),
		"triggers":   []any{map[string]any{"type": "event", "event": "ordered"}},
		"recurrence": map[string]any{"policy": "once"}, "defaults": map[string]any{"from": map[string]any{"email": "news@shop.example"}},
		"start": next, "nodes": nodes})
	must(err)
	flow, err := s.Flows.Create(ctx, ws, flows.NewFlow{ID: lemma.NewID(), Name: "orders", Definition: definition})
	must(err)
	_, err = s.Flows.Publish(ctx, ws, flow.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	must(err)
	must(s.StartWorkers(context.WithoutCancel(ctx)))
	t.Cleanup(func() { _ = s.Stop() })
	_, err = s.Flows.Intake.Record(ctx, ws,
		intake.Event{ProfileKey: "anna", Name: "ordered", Properties: json.RawMessage(`{"order":"A & B"}`)})
	must(err)

	push := sender.Message{Subject: "Order", Text: "A & B", Link: "myapp://orders", Data: map[string]string{"order": "A & B"}}
	first, second := push, push
	first.To, second.To = "ios-1", "web-2"
	want := map[string]sender.Message{
		"Anna@shop.example": {To: "Anna@shop.example", FromEmail: "news@shop.example", Subject: "Hi anna", HTML: "<p>Hi anna</p>",
			Text: "Hi anna"},
		"+4930123401": {To: "+4930123401", Text: "A & B is <here>"},
		"ios-1":       first, "web-2": second,
	}
	pgtest.Eventually(t, 30*time.Second, "every channel has its messages", func() bool { return len(got.all()) >= len(want) })
	if diff := cmp.Diff(want, got.all()); diff != "" {
		t.Error(diff)
	}
	var channels string
	must(pool.QueryRow(ctx, `
		select string_agg(channel || ' ' || n, ',' order by channel) from (
			select channel, count(*) as n from notification_status where workspace_id = $1 group by channel) c`, ws).Scan(&channels))
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
