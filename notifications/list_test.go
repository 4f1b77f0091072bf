package notifications_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/notifications"
	"lemma/page"
	"lemma/pgtest"
)

// Every filter finds the same rows as a list of all, page by page.
func TestListFilters(t *testing.T) {
	f := setup(t)
	f.insert(recipients(40))
	f.content(f.origin, lemma.Email)
	for i := range 40 {
		switch i % 4 {
		case 0:
			f.end(i, "accepted", "response", "sent")
		case 1:
			f.end(i, "rejected", "response", "failed")
		case 2:
			f.orphan(i)
		}
	}
	f.Exec(`update batches set status = 'leased', leased_by = 't', lease_until = now(), called_through = 4`)
	all := f.list(notifications.Filter{OriginID: &f.origin}, 7)
	if len(all) != 40 {
		t.Fatalf("%d in all", len(all))
	}
	for _, status := range []string{"sent", "failed", "orphaned", "pending", "processing", "skipped", "cancelled"} {
		want := 0
		for _, s := range all {
			if s == status {
				want++
			}
		}
		for _, filter := range []notifications.Filter{{OriginID: &f.origin, Status: status}, {Status: status}} {
			if got := f.list(filter, 3); len(got) != want {
				t.Errorf("%s: found %d, want %d", status, len(got), want)
			}
		}
	}
	if got := f.list(notifications.Filter{OriginID: &f.origin, Address: " P7@shop.example"}, 5); len(got) != 1 {
		t.Errorf("by address: %v", got)
	}
	for i := range 40 {
		status := all[keyOf(i).String()]
		for _, wanted := range []string{status, "sent", "pending", "orphaned"} {
			want := 0
			if status == wanted {
				want = 1
			}
			for name, filter := range map[string]notifications.Filter{"address": {Address: address(i)}, "profile": {ProfileKey: fmt.Sprint(i)}} {
				filter.OriginID, filter.Status = &f.origin, wanted
				if got := f.list(filter, 5); len(got) != want {
					t.Errorf("%d by %s and %s: found %d, want %d", i, name, wanted, len(got), want)
				}
			}
		}
	}
	if got := f.list(notifications.Filter{OriginID: &f.origin, ProfileKey: "9"}, 5); len(got) != 1 {
		t.Errorf("by profile: %v", got)
	}
	_, _, err := f.List(t.Context(), f.Workspace, notifications.Filter{ProfileKey: "9"}, page.Query{Limit: 5})
	if lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a search without campaign or flow: %v", err)
	}
}

func TestListFindsAddressesAndOriginsOfAChannel(t *testing.T) {
	f := setup(t)
	addresses := map[lemma.Channel]string{lemma.Email: "Anna@shop.example", lemma.SMS: "+4930123456", lemma.Push: "aBc"}
	origins := map[lemma.Channel]uuid.UUID{}
	for channel, to := range addresses {
		f.origin = lemma.NewID()
		origins[channel] = f.origin
		f.content(f.origin, channel)
		r := recipient(1)
		r.Address = to
		skipped := notifications.Recipient{ProfileKey: "2", Skip: notifications.MissingAddress}
		f.insert([]notifications.Recipient{r, skipped})
	}
	for channel, spellings := range map[lemma.Channel]map[string]int{
		//nolint:gocritic // an address with spaces around it
		lemma.Email: {"anna@SHOP.example": 1, " Anna@shop.example ": 1, "bert@shop.example": 0},
		lemma.SMS:   {"+49 (0)30 123456": 1, "+4930123456": 1, "030 123456": 0},
		lemma.Push:  {"aBc": 1, "abc": 0},
	} {
		origin := origins[channel]
		for text, want := range spellings {
			if got := f.list(notifications.Filter{OriginID: &origin, Address: text}, 5); len(got) != want {
				t.Errorf("%s: %q finds %d, want %d", channel, text, len(got), want)
			}
		}
		if got := f.list(notifications.Filter{Channel: channel}, 5); len(got) != 2 {
			t.Errorf("%s: the channel finds %d, want 2", channel, len(got))
		}
	}
}

func TestListFindsBothFormsOfAnArgentineNumber(t *testing.T) {
	f := setup(t)
	f.content(f.origin, lemma.SMS)
	for i, to := range []string{"+5491123456789", "+541123456789", "+541123456780"} {
		r := recipient(i)
		r.Address = to
		f.insert([]notifications.Recipient{r})
	}
	for _, text := range []string{"+54 9 11 2345-6789", "+54 11 2345-6789", "+54 11 15 2345-6789"} {
		if got := f.list(notifications.Filter{OriginID: &f.origin, Address: text}, 5); len(got) != 2 {
			t.Errorf("%q finds %d, want 2", text, len(got))
		}
	}
}

// list reads all pages of a list: status by key.
func (f *fixture) list(filter notifications.Filter, limit int) map[string]string {
	f.T.Helper()
	found := map[string]string{}
	for _, n := range pgtest.Pages(f.T, limit, func(cursor string) ([]notifications.Notification, string, error) {
		return f.List(f.T.Context(), f.Workspace, filter, page.Query{Limit: limit, Cursor: cursor})
	}) {
		found[n.Key.String()] = n.Status
	}
	return found
}

// The notifications of a flow and the direct ones are listed origin by origin, whatever the
// size of a page, and those of others are not read.
func TestListOfSeveralOrigins(t *testing.T) {
	f := setup(t)
	flow := lemma.NewID()
	month := time.Now().UTC()
	want := map[string][]string{}
	for _, of := range []struct {
		name    string
		origins []uuid.UUID // the newest first
	}{
		{"flow", []uuid.UUID{lemma.NewID(), lemma.NewID(), lemma.NewID()}},
		{"direct", []uuid.UUID{notifications.DirectOrigin(f.Workspace, month)}},
		{"campaign", []uuid.UUID{f.origin}},
	} {
		for n, origin := range of.origins {
			if of.name == "flow" {
				f.Exec(`insert into flow_origins (workspace_id, origin_id, flow_id) values ($1, $2, $3)`, f.Workspace, origin, flow)
			}
			f.origin = origin
			if n != 1 { // the second one is empty
				f.insert(recipients(4))
				for i := range 4 {
					want[of.name] = append(want[of.name], fmt.Sprint(origin, keyOf(i)))
				}
			}
		}
	}
	for name, filter := range map[string]notifications.Filter{"flow": {FlowID: &flow}, "direct": {Direct: true}} {
		slices.Sort(want[name])
		for _, reason := range []string{"", "none"} {
			filter.Reason = reason
			for _, limit := range []int{1, 3, 4, 5, 7, 8, 9} {
				var got []string
				for _, n := range pgtest.Pages(t, limit, func(cursor string) ([]notifications.Notification, string, error) {
					return f.List(t.Context(), f.Workspace, filter, page.Query{Limit: limit, Cursor: cursor})
				}) {
					got = append(got, fmt.Sprint(n.OriginID, n.Key))
				}
				if slices.Sort(got); reason == "" && !slices.Equal(got, want[name]) || reason != "" && len(got) > 0 {
					t.Errorf("%s by %d: %d notifications, want %d", name, limit, len(got), len(want[name]))
				}
			}
		}
	}
	origin := notifications.DirectOrigin(f.Workspace, month)
	for name, filter := range map[string]notifications.Filter{"flow and direct": {FlowID: &flow, Direct: true},
		"origin and direct": {OriginID: &origin, Direct: true}, "origin and flow": {OriginID: &origin, FlowID: &flow}} {
		all, _, err := f.List(t.Context(), f.Workspace, filter, page.Query{Limit: 1})
		if len(all) > 0 || err != nil {
			t.Errorf("%s: %d notifications, %v", name, len(all), err)
		}
	}
	for _, cursor := range []string{"x", lemma.NewID().String() + "."} {
		_, _, err := f.List(t.Context(), f.Workspace, notifications.Filter{FlowID: &flow}, page.Query{Limit: 1, Cursor: cursor})
		if lemma.KindOf(err) != lemma.Invalid {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
}

// Direct notifications of each month are listed once, whatever the time zone of a session: a
// step of a month from October 1 in UTC is one from September 30 in New York.
func TestListOfDirectInOtherZones(t *testing.T) {
	f := setup(t)
	now := time.Now().UTC()
	first := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	f.Exec("update workspaces set created_at = $2 where id = $1", f.Workspace, first.AddDate(0, -14, 20))
	var want []string
	for n := range 15 {
		f.origin = notifications.DirectOrigin(f.Workspace, first.AddDate(0, -n, 0))
		f.insert(recipients(2))
		want = append(want, fmt.Sprint(f.origin, keyOf(0)), fmt.Sprint(f.origin, keyOf(1)))
	}
	slices.Sort(want)
	for _, zone := range []string{"UTC", "America/New_York", "America/Sao_Paulo", "Europe/Berlin", "Asia/Tokyo", "Pacific/Kiritimati"} {
		config := f.Pool.Config()
		config.ConnConfig.RuntimeParams["timezone"] = zone
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		f.Must(err)
		var got []string
		for _, n := range pgtest.Pages(t, 3, func(cursor string) ([]notifications.Notification, string, error) {
			return notifications.New(pool).List(t.Context(), f.Workspace, notifications.Filter{Direct: true}, page.Query{Limit: 3, Cursor: cursor})
		}) {
			got = append(got, fmt.Sprint(n.OriginID, n.Key))
		}
		pool.Close()
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %d of %d notifications are listed", zone, len(got), len(want))
		}
	}
}

// The filter by resolution finds orphaned notifications only, with any other filter.
func TestListByResolution(t *testing.T) {
	f := setup(t)
	f.insert(recipients(30))
	for i := range 12 {
		f.orphan(i)
	}
	f.end(20, "accepted", "response", "sent")
	for i, resolution := range []string{"sent", "sent", "not_sent"} {
		_, err := f.Resolve(t.Context(), f.Workspace, f.origin, keyOf(i),
			notifications.Resolution{Resolution: resolution, APIKeyID: lemma.NewID()})
		f.Must(err)
	}
	for _, c := range []struct {
		filter notifications.Filter
		want   int
	}{
		{notifications.Filter{Resolution: "none"}, 9},
		{notifications.Filter{Resolution: "sent"}, 2},
		{notifications.Filter{Resolution: "not_sent"}, 1},
		{notifications.Filter{Resolution: "none", OriginID: &f.origin}, 9},
		{notifications.Filter{Resolution: "none", Status: "orphaned"}, 9},
		{notifications.Filter{Resolution: "none", Status: "sent"}, 0},
		{notifications.Filter{Resolution: "none", OriginID: &f.origin, ProfileKey: "5"}, 1},
		{notifications.Filter{Resolution: "sent", OriginID: &f.origin, ProfileKey: "5"}, 0},
	} {
		if got := f.list(c.filter, 4); len(got) != c.want {
			t.Errorf("%+v: found %d, want %d", c.filter, len(got), c.want)
		}
	}
}

// The first resolution of an orphaned notification is final.
func TestResolve(t *testing.T) {
	f := setup(t)
	f.insert(recipients(2))
	f.orphan(0)
	f.end(1, "accepted", "response", "sent")
	r := notifications.Resolution{Resolution: "sent", Note: "found in the server's log", APIKeyID: lemma.NewID()}
	if _, err := f.Resolve(t.Context(), f.Workspace, f.origin, keyOf(1), r); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("resolved one that was sent: %v", err)
	}
	n, err := f.Resolve(t.Context(), f.Workspace, f.origin, keyOf(0), r)
	if err != nil || n.Status != "orphaned" || n.Resolution == nil || *n.Resolution != "sent" {
		t.Errorf("%+v, %v", n, err)
	}
	r.Resolution = "not_sent"
	if _, err := f.Resolve(t.Context(), f.Workspace, f.origin, keyOf(0), r); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("the first resolution is not final: %v", err)
	}
	if n := f.get(0); *n.Resolution != "sent" {
		t.Errorf("it is resolved as %s", *n.Resolution)
	}
	if _, err := f.Resolve(t.Context(), lemma.NewID(), f.origin, keyOf(0), r); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("another workspace's was found: %v", err)
	}
}
