package campaigns

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/message"
)

// reached is an audience on a relation of its own, with a template and a provider for
// each channel.
type reached struct {
	*bundle
	audience  uuid.UUID
	templates map[lemma.Channel]uuid.UUID
	providers map[lemma.Channel]uuid.UUID
}

func reach(t *testing.T, rows string, change ...func(*Config)) *reached {
	t.Helper()
	b := &reached{bundle: setup(t, 0, change...), templates: map[lemma.Channel]uuid.UUID{}, providers: map[lemma.Channel]uuid.UUID{}}
	b.ExecDB(`create table people (id text, email text, phone text, tokens text[], out boolean default false)`)
	b.ExecDB(`grant select on people to ` + b.Role)
	if rows != "" {
		b.ExecDB(`insert into people ` + rows)
	}
	x, err := b.deps.Audiences.Create(t.Context(), b.Workspace, audience.NewAudience{ID: lemma.NewID(), DataSourceID: b.Source, Name: "people",
		SQL: "select id, email, phone, tokens, out from people", KeyColumn: "id", EmailColumn: "email", PhoneColumn: "phone", PhoneRegion: "DE",
		PushColumn: "tokens", OptedOutColumn: "out"})
	b.Must(err)
	b.audience = x.ID
	for channel, content := range map[lemma.Channel]message.Content{
		lemma.Email: {Subject: "Hi {{ id }}", Text: "t"},
		lemma.SMS:   {Channel: lemma.SMS, Text: "Hi {{ id }}"},
		lemma.Push:  {Channel: lemma.Push, Subject: "Hi", Text: "Hi {{ id }}", Data: map[string]string{"id": "{{ id }}"}},
	} {
		tpl, err := b.deps.Templates.Create(t.Context(), b.Workspace,
			message.NewTemplate{ID: lemma.NewID(), Name: string(channel), Content: content})
		b.Must(err)
		b.templates[channel], b.providers[channel] = tpl.ID, lemma.NewID()
		b.Exec(`insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, $3, $4, 'smtp', '{}')`,
			b.Workspace, b.providers[channel], "p "+channel, channel)
	}
	return b
}

func (b *reached) new(channel lemma.Channel) NewCampaign {
	n := NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.audience, TemplateID: b.templates[channel], ProviderID: b.providers[channel]}
	if channel == lemma.Email {
		n.FromEmail = "news@shop.example"
	}
	return n
}

// send makes a campaign, previews it, fans it out twice and returns its rows, which are
// "profile address reason".
func (b *reached) send(channel lemma.Channel) (c Campaign, preview Preview, rows []string) {
	b.T.Helper()
	c, err := b.Create(b.T.Context(), b.Workspace, b.new(channel))
	b.Must(err)
	preview, err = b.Preview(b.T.Context(), b.Workspace, c.ID)
	b.Must(err)
	c, err = b.Send(b.T.Context(), b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	b.fanout(c.ID)
	b.Exec(`update fanouts set finished_at = null where campaign_id = $1`, c.ID)
	b.fanout(c.ID)
	found, err := b.Pool.Query(b.T.Context(), `
		select profile_key || ' ' || coalesce(address, '') || ' ' || coalesce(skip_reason, '') from notifications
		where workspace_id = $1 and origin_id = $2 order by 1`, b.Workspace, c.ID)
	b.Must(err)
	rows, err = pgx.CollectRows(found, pgx.RowTo[string])
	b.Must(err)
	return b.get(c.ID), preview, rows
}

// agree checks that a preview counted what the fan-out has written.
func (b *reached) agree(c Campaign, p Preview, rows []string) {
	b.T.Helper()
	n := c.Counts
	if !n.Balanced || n.Audience != int64(len(rows)) || p.Rows != n.Audience || p.Sendable != n.Pending ||
		!maps.Equal(p.SkippedBy, n.SkippedBy) {
		b.T.Errorf("%+v, but the preview has %d rows, %d sendable, %v", n, p.Rows, p.Sendable, p.SkippedBy)
	}
	var channel lemma.Channel
	b.Must(b.Pool.QueryRow(b.T.Context(), `select channel from contents where workspace_id = $1 and id = $2`, b.Workspace,
		c.ID).Scan(&channel))
	if channel != c.Channel {
		b.T.Errorf("the content is for %s, the campaign for %s", channel, c.Channel)
	}
}

func TestFanoutOfSMS(t *testing.T) {
	b := reach(t, `(id, phone, out) values
		('01', '+49 30 123401', false), ('02', '030 123402', false), ('03', '0049 30 123403', false), ('04', '(030) 1234-04', false),
		('10', '+4930123401', false), ('11', '030/123401', false),
		('20', null, false), ('21', ' ', false), ('22', '+1 800 FLOWERS', false), ('23', '+49 30 123423 ext. 5', false), ('24', '+49301', false),
		('25', 'none', false), ('26', '+4930123426, +4930123427', false),
		('30', '+49 30 123430', true), ('31', '030 123430', false), ('30', '030 123431', false)`)
	c, p, rows := b.send(lemma.SMS)
	want := []string{"01 +4930123401 ", "02 +4930123402 ", "03 +4930123403 ", "04 +4930123404 ",
		"10 +4930123401 duplicate_address", "11 +4930123401 duplicate_address",
		"20  missing_address", "21  missing_address", "22 +1 800 FLOWERS invalid_address", "23 +49 30 123423 ext. 5 invalid_address",
		"24 +49301 invalid_address", "25 none invalid_address", "26 +4930123426, +4930123427 invalid_address",
		"30 +4930123430 unsubscribed", "30 +4930123431 unsubscribed", "31 +4930123430 duplicate_address"}
	if diff := cmp.Diff(want, firstOf(rows, "01", "10", "11")); diff != "" {
		t.Error(diff)
	}
	b.agree(c, p, rows)
	if c.Profiles != nil {
		t.Errorf("profiles of an SMS campaign are counted: %d", *c.Profiles)
	}
	if len(p.Sample) == 0 || p.Sample[0].Text == "" || p.Sample[0].Address == "" || p.Sample[0].Channel != lemma.SMS {
		t.Errorf("sample %+v", p.Sample)
	}
	var key uuid.UUID
	b.Must(b.Pool.QueryRow(t.Context(), `select key from notifications where origin_id = $1 and profile_key = '02'`, c.ID).Scan(&key))
	if key != Key(c.ID, lemma.SMS, "+4930123402") {
		t.Error("the key is not that of the canonical number")
	}
}

// firstOf writes the row that is sent as that of the first of several profiles with one
// address: any of them may hold it.
func firstOf(rows []string, profiles ...string) []string {
	rows = slices.Clone(rows)
	at := func(profile string) int {
		return slices.IndexFunc(rows, func(r string) bool { return r[:len(profile)] == profile })
	}
	for _, other := range profiles[1:] {
		i, j := at(profiles[0]), at(other)
		if rows[j][len(rows[j])-1] == ' ' {
			rows[i], rows[j] = profiles[0]+rows[j][2:], other+rows[i][2:]
		}
	}
	return rows
}

func TestFanoutOfPush(t *testing.T) {
	b := reach(t, `(id, tokens, out)
		select '1', array['a', 'b', null, '', 'a'], false union all
		select '2', array['b2', 'B2'], false union all
		select '3', '{}', false union all
		select '4', null, false union all
		select '5', (select array_agg('m' || i order by i) from generate_series(10, 31) i), false union all
		select '6', array['x', 'y'], true union all
		select '7', array['y', 'z'], false union all
		select '6', array['w'], false`)
	c, p, rows := b.send(lemma.Push)
	var want []string
	for i := 10; i <= 29; i++ {
		want = append(want, fmt.Sprintf("5 m%d ", i))
	}
	want = append(want, "1 a ", "1 b ", "2 B2 ", "2 b2 ", "3  missing_address", "4  missing_address", "5 m30 too_many_addresses",
		"6 w unsubscribed", "6 x unsubscribed", "6 y unsubscribed", "7 y duplicate_address", "7 z ")
	slices.Sort(want)
	slices.Sort(rows)
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
	b.agree(c, p, rows)
	if c.Profiles == nil || *c.Profiles != 7 || c.RowsRead == nil || *c.RowsRead != 8 {
		t.Errorf("%v profiles, %v rows", c.Profiles, c.RowsRead)
	}
}

func TestFanoutOfEmailIgnoresOtherAddresses(t *testing.T) {
	b := reach(t, `(id, email, phone, tokens) values ('1', 'a@shop.example', 'x', '{t,u}'), ('2', null, '030 123401', '{v}')`)
	c, p, rows := b.send(lemma.Email)
	if diff := cmp.Diff([]string{"1 a@shop.example ", "2  missing_address"}, rows); diff != "" {
		t.Error(diff)
	}
	b.agree(c, p, rows)
}

// Several writers meet the tokens that profiles share.
func TestTokensThatProfilesShareAreSentToOnce(t *testing.T) {
	b := reach(t, `(id, tokens) select i::text, array['a' || i % 200, 'b' || i, 'c' || i] from generate_series(1, 500) i`,
		func(c *Config) { c.Chunk, c.Lease = 100, time.Second })
	c, p, rows := b.send(lemma.Push)
	b.agree(c, p, rows)
	addresses := b.addresses(c.ID)
	for address, n := range addresses {
		if n != 1 {
			t.Errorf("%s has %d notifications", address, n)
		}
	}
	if len(addresses) != 1200 || *c.Profiles != 500 {
		t.Errorf("%d addresses, %d profiles", len(addresses), *c.Profiles)
	}
}

func faultAt(err error) string {
	var wrong *lemma.Error
	if !errors.As(err, &wrong) || len(wrong.Fields) == 0 {
		return fmt.Sprint(err)
	}
	return wrong.Fields[0].Pointer + " " + wrong.Fields[0].Code
}

func TestProviderAndAudienceMustHaveTheChannelOfTheTemplate(t *testing.T) {
	b := reach(t, "")
	for what, c := range map[string]struct {
		change func(*NewCampaign)
		want   string
	}{
		"a provider of another channel":  {func(n *NewCampaign) { n.ProviderID = b.providers[lemma.Push] }, "/provider_id wrong_channel"},
		"an audience without numbers":    {func(n *NewCampaign) { n.AudienceID = b.Audience }, "/audience_id wrong_channel"},
		"a sender":                       {func(n *NewCampaign) { n.FromEmail = "news@shop.example" }, "/from wrong_channel"},
		"a reply address":                {func(n *NewCampaign) { n.ReplyTo = "news@shop.example" }, "/reply_to wrong_channel"},
		"headers":                        {func(n *NewCampaign) { n.Headers = map[string]string{"X-A": "b"} }, "/headers wrong_channel"},
		"a provider that does not exist": {func(n *NewCampaign) { n.ProviderID = lemma.NewID() }, "/provider_id unknown_id"},
		"an audience that does not":      {func(n *NewCampaign) { n.AudienceID = lemma.NewID() }, "/audience_id unknown_id"},
	} {
		n := b.new(lemma.SMS)
		c.change(&n)
		if _, err := b.Create(t.Context(), b.Workspace, n); faultAt(err) != c.want {
			t.Errorf("%s: %v", what, err)
		}
	}
	n := b.new(lemma.Email)
	n.FromEmail = ""
	if _, err := b.Create(t.Context(), b.Workspace, n); faultAt(err) != "/from required" {
		t.Errorf("an email without a sender: %v", err)
	}
}

func TestChannelIsCheckedAtEachStep(t *testing.T) {
	b := reach(t, `(id, phone) values ('1', '030 123401')`)
	c, err := b.Create(t.Context(), b.Workspace, b.new(lemma.SMS))
	b.Must(err)
	other := b.providers[lemma.Email]
	if _, err := b.Update(t.Context(), b.Workspace, c.ID, nil, Patch{ProviderID: &other}); faultAt(err) != "/provider_id wrong_channel" {
		t.Errorf("update: %v", err)
	}
	sending, err := b.Create(t.Context(), b.Workspace, b.new(lemma.SMS))
	b.Must(err)
	_, err = b.Send(t.Context(), b.Workspace, sending.ID, uuid.Nil)
	b.Must(err)
	none := ""
	_, err = b.deps.Audiences.Update(t.Context(), b.Workspace, b.audience, nil, audience.Patch{PhoneColumn: &none, PhoneRegion: &none}, nil)
	b.Must(err)
	if _, err := b.Schedule(t.Context(), b.Workspace, c.ID, time.Now().Add(time.Hour),
		uuid.Nil); faultAt(err) != "/audience_id wrong_channel" {
		t.Errorf("schedule: %v", err)
	}
	if _, err := b.Send(t.Context(), b.Workspace, c.ID, uuid.Nil); faultAt(err) != "/audience_id wrong_channel" {
		t.Errorf("send: %v", err)
	}
	if _, err := b.Preview(t.Context(), b.Workspace, c.ID); faultAt(err) != "/audience_id wrong_channel" {
		t.Errorf("preview: %v", err)
	}
	b.fanout(sending.ID)
	if now := b.get(sending.ID); now.Status != Failed || now.Counts.Audience != 0 {
		t.Errorf("the fan-out: %s %s, %d written", now.Status, now.StatusReason, now.Counts.Audience)
	}
}

func TestADraftThatChangesItsChannelLosesItsSender(t *testing.T) {
	b := reach(t, "")
	n := b.new(lemma.Email)
	n.ReplyTo, n.FromName, n.Headers = "news@shop.example", "Shop", map[string]string{"X-A": "b"}
	c, err := b.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	template, provider := b.templates[lemma.SMS], b.providers[lemma.SMS]
	from := "news@shop.example"
	if _, err := b.Update(t.Context(), b.Workspace, c.ID, nil,
		Patch{TemplateID: &template, ProviderID: &provider, FromEmail: &from}); faultAt(err) != "/from wrong_channel" {
		t.Errorf("with a sender: %v", err)
	}
	c, err = b.Update(t.Context(), b.Workspace, c.ID, nil, Patch{TemplateID: &template, ProviderID: &provider})
	b.Must(err)
	if c.Channel != lemma.SMS || c.FromEmail+c.FromName+c.ReplyTo != "" || len(c.Headers) > 0 {
		t.Errorf("%+v", c)
	}
}

func TestRecheckReadsTheAddressesOfAChannel(t *testing.T) {
	b := reach(t, `(id, phone, tokens) values ('1', '030 123401', '{a,b}')`)
	c, _, _ := b.send(lemma.Push)
	var rows []audience.Row
	found, err := b.Recheck(t.Context(), b.Workspace, c.ID, []string{"1"}, func(r audience.Row) error { rows = append(rows, r); return nil })
	if err != nil || !found || len(rows) != 1 {
		t.Fatal(rows, found, err)
	}
	row := rows[0]
	for channel, want := range map[lemma.Channel][]string{lemma.Push: {"a", "b"}, lemma.SMS: {"+4930123401"}, lemma.Email: {""}} {
		var got []string
		for _, a := range row.Addresses(nil, channel) {
			got = append(got, a.Canonical)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", channel, got, want)
		}
	}
}
