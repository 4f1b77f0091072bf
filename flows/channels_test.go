package flows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/flowstest"
	"lemma/message"
	"lemma/pgtest"
)

// overChannels is a flow that sends an SMS and then a push.
const overChannels = `{"audience_id":"$people","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"per_event"},
	"start":"sms","nodes":{
	"sms":{"type":"send","channel":"sms","provider_id":"$sms_provider","template_id":"$sms_template","next":"push",
		"conversion":{"event":"bought","within":"P2D"}},
	"push":{"type":"send","channel":"push","provider_id":"$push_provider","template_id":"$push_template","next":"end"},
	"end":{"type":"exit"}}}`

// reachable makes an audience with phone numbers and tokens, and returns the definition of
// a flow over both channels.
func (b *bundle) reachable(rows string) string {
	b.T.Helper()
	ctx := context.Background()
	b.ExecDB(`create table people (id text, phone text, tokens text[])`)
	b.ExecDB(`grant select on people to ` + b.Role)
	b.ExecDB(`insert into people values ` + rows)
	people, err := b.Deps.Audiences.Create(ctx, b.Workspace, audience.NewAudience{ID: lemma.NewID(), DataSourceID: b.Source, Name: "people",
		SQL: "select * from people", KeyColumn: "id", PhoneColumn: "phone", PhoneRegion: "DE", PushColumn: "tokens"})
	b.Must(err)
	text := strings.ReplaceAll(overChannels, "$people", lemma.FormatID(lemma.PrefixAudience, people.ID))
	for channel, content := range map[lemma.Channel]message.Content{
		lemma.SMS: {Channel: lemma.SMS, Text: "Hi {{ id }}"}, lemma.Push: {Channel: lemma.Push, Text: "Hi {{ id }}"},
	} {
		tpl, err := b.Deps.Templates.Create(ctx, b.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: uuid.NewString(), Content: content})
		b.Must(err)
		provider := lemma.NewID()
		b.Exec(`insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, $3, $3, 'smtp', '{}')`,
			b.Workspace, provider, string(channel))
		text = strings.ReplaceAll(text, "$"+string(channel)+"_template", lemma.FormatID(lemma.PrefixTemplate, tpl.ID))
		text = strings.ReplaceAll(text, "$"+string(channel)+"_provider", lemma.FormatID(lemma.PrefixProvider, provider))
	}
	return text
}

// written are the notifications of a profile: "channel address reason".
func (b *bundle) written(profile string) []string {
	b.T.Helper()
	rows, err := b.Pool.Query(b.T.Context(), `
		select channel || ' ' || coalesce(address, '') || ' ' || coalesce(reason, '') from notification_status
		where workspace_id = $1 and profile_key = $2`, b.Workspace, profile)
	b.Must(err)
	defer rows.Close()
	var found []string
	for rows.Next() {
		var one string
		b.Must(rows.Scan(&one))
		found = append(found, one)
	}
	slices.Sort(found)
	return found
}

// countsOf are the notifications of a send node: all, and those that were skipped.
func (b *bundle) countsOf(flow uuid.UUID, node string) (written, skipped int64) {
	b.T.Helper()
	counts, err := b.Counts(b.T.Context(), b.Workspace, flow, 0)
	b.Must(err)
	for _, n := range counts.Nodes {
		if n.Node == node {
			return n.Messages["written"], n.Messages["skipped"]
		}
	}
	return 0, 0
}

// Each address is a notification, skipped or not, and is counted.
func TestSendNodesOfEachChannel(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(b.reachable(`('c1', '030 123401', array['bad' || chr(10) || 'token', 't1', 't2', 't1']),
		('c2', 'none', '{}'), ('c3', null, null)`))
	for _, profile := range []string{"c1", "c2", "c3"} {
		b.RecordEvent(profile, "signed_up")
	}
	b.Settle()
	for profile, want := range map[string][]string{
		"c1": {"push bad\ntoken invalid_address", "push t1 ", "push t2 ", "sms +4930123401 "},
		"c2": {"push  missing_address", "sms none invalid_address"},
		"c3": {"push  missing_address", "sms  missing_address"},
	} {
		if diff := cmp.Diff(want, b.written(profile)); diff != "" {
			t.Error(profile, diff)
		}
	}
	for node, want := range map[string][2]int64{"sms": {3, 2}, "push": {5, 3}} {
		if written, skipped := b.countsOf(flow, node); written != want[0] || skipped != want[1] {
			t.Errorf("%s: %d notifications, %d of them skipped, want %v", node, written, skipped, want)
		}
	}
	converting := pgtest.One[string](t, b.Pool, `
		select string_agg(distinct concat_ws(' ', node, conversion_event, conversion_within::text), ', ') || ' ' ||
			(select string_agg(profile_key, ',') from notifications where workspace_id = $1 and converts)
		from contents where workspace_id = $1`, b.Workspace)
	if converting != "push, sms bought 48:00:00 c1" {
		t.Error(converting)
	}
	_, steps, _, err := b.Steps(t.Context(), b.Workspace, b.Enrollment(flow, "c1").ID, -1)
	b.Must(err)
	for _, s := range steps {
		if s.Node == "push" && (s.Event != "sent" || s.Data["messages"] != json.Number("3") && s.Data["messages"] != float64(3) ||
			s.Notification == nil || s.Notification.Status != "pending") {
			t.Errorf("%+v", s)
		}
	}
}

// A profile with several rows, such as one for each device, is reached at the addresses of all of them,
// each once. Rows without an address count only if no row has one.
func TestProfilesWithSeveralRows(t *testing.T) {
	b := setup(t, 1)
	many := make([]string, 120)
	for i := range many {
		many[i] = fmt.Sprintf("('many', null, '{t%d}')", i)
	}
	flow := b.Live(b.reachable(`('c1', null, '{}'), ('c1', '030 123402', '{tablet}'), ('c1', '030 123402', '{phone,tablet}'),
		('c1', '030 123403', null), ('c2', null, null), ('c2', 'none', null), ` + strings.Join(many, ", ")))
	for _, profile := range []string{"c1", "c2", "many"} {
		b.RecordEvent(profile, "signed_up")
	}
	b.Settle()
	for profile, want := range map[string][]string{
		"c1": {"push phone ", "push tablet ", "sms +4930123402 ", "sms +4930123403 "},
		"c2": {"push  missing_address", "sms none invalid_address"},
	} {
		if diff := cmp.Diff(want, b.written(profile)); diff != "" {
			t.Error(profile, diff)
		}
	}
	all := b.written("many")
	want := []string{"push  too_many_addresses", "sms  missing_address"}
	if diff := cmp.Diff(want, slices.DeleteFunc(slices.Clone(all), func(n string) bool { return strings.HasSuffix(n, " ") })); diff != "" {
		t.Error(diff)
	}
	if sent := len(all) - len(want); sent != 100 {
		t.Errorf("%d addresses of 120 rows are sent to, want 100", sent)
	}
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	_, steps, _, err := b.Steps(t.Context(), b.Workspace, b.Enrollment(flow, "c1").ID, -1)
	b.Must(err)
	for _, s := range steps {
		if s.Event != "sent" {
			continue
		}
		if len(s.Others) != 1 || s.Notification == nil || s.Others[0].State == nil || s.Others[0].ID == s.NotificationID {
			t.Errorf("%s: %+v beside %s", s.Node, s.Others, s.NotificationID)
		}
	}
	if written, skipped := b.countsOf(flow, "push"); written != 104 || skipped != 2 {
		t.Errorf("push: %d notifications, %d of them skipped", written, skipped)
	}
}

// Each notification of a push is erased.
func TestErasePush(t *testing.T) {
	b := setup(t, 1)
	b.Live(b.reachable(`('annika', '030 123401', '{annika-1,annika-2,annika-3}')`))
	b.RecordEvent("annika", "signed_up", flowstest.Properties(`{}`))
	b.Settle()
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	if n := b.mentions("annika-")["notifications"]; n != 3 {
		t.Fatalf("%d notifications name a token", n)
	}
	if got := b.erase("annika"); got.Notifications != 4 {
		t.Errorf("%+v", got)
	}
	if left := b.mentions("nnika"); len(left) > 0 {
		t.Error(left)
	}
}

func TestChannelsAreValidated(t *testing.T) {
	b := setup(t, 1)
	text := b.reachable(`('c1', null, null)`)
	if v := b.validate(text); !v.Valid {
		t.Fatalf("%+v", v.Faults)
	}
	for what, c := range map[string]struct{ from, to, want string }{
		"the channel of another provider": {`"channel":"sms"`, `"channel":"push"`, "/nodes/sms/provider_id wrong_channel"},
		"an audience without addresses": {`"channel":"sms"`, `"channel":"email","from":{"email":"news@shop.example"}`,
			"/nodes/sms/channel wrong_channel"},
	} {
		v := b.validate(strings.Replace(text, c.from, c.to, 1))
		var got []string
		for _, f := range v.Faults {
			got = append(got, f.Pointer+" "+f.Code)
		}
		if !slices.Contains(got, c.want) {
			t.Errorf("%s: %v, want %s", what, got, c.want)
		}
	}
}
