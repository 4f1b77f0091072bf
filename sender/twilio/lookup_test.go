package twilio

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/sendertest"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// listed is a message in Twilio's list.
func listed(n int, at time.Time, change ...func(*record)) record {
	r := record{SID: fmt.Sprintf("SM%032x", n), To: number(1), From: "+15005550006", Service: testService, Body: "Grüße & more",
		Created: at.Format(time.RFC1123Z)}
	for _, c := range change {
		c(&r)
	}
	return r
}

// lookup asks a server with pages of a list.
func lookup(t *testing.T, config string, pages ...[]record) ([]string, error) {
	t.Helper()
	const path = "/2010-04-01/Accounts/" + testAccount + "/Messages.json"
	s := sendertest.ServeHTTPS(t, true, func(r sendertest.Received) sendertest.Reply {
		request := http.Request{Header: r.Header}
		user, password, _ := request.BasicAuth()
		query, _ := url.ParseQuery(r.Query)
		if user != testKey || password != testSecret || r.Path != path || query.Get("To") != number(1) || len(r.Body) != 0 {
			t.Errorf("a request of %s?%s", r.Path, r.Query)
		}
		n := 0
		_, _ = fmt.Sscan(query.Get("Page"), &n)
		body := map[string]any{"messages": pages[n], "next_page_uri": nil}
		if n+1 < len(pages) {
			body["next_page_uri"] = fmt.Sprintf("%s?To=%s&PageSize=20&Page=%d&PageToken=PA1", path, url.QueryEscape(number(1)), n+1)
		}
		text, _ := json.Marshal(body)
		return sendertest.Reply{Body: string(text)}
	})
	m := sender.Message{To: number(1), Text: "Grüße & more"}
	return accountAt(t, s, config, byKey, public).Lookup(t.Context(), &m, noon.Add(-time.Minute), noon.Add(5*time.Minute))
}

func TestLookup(t *testing.T) {
	t.Parallel()
	before, after := noon.Add(-time.Hour), noon.Add(time.Hour)
	with := func(change func(*record)) record { return listed(9, noon, change) }
	for _, c := range []struct {
		name, config string
		pages        [][]record
		want         []int
	}{
		{"nothing", byService, [][]record{{}}, nil},
		{"one", byService, [][]record{{listed(1, noon)}}, []int{1}},
		{"two, with others around them", byService, [][]record{{listed(3, after), listed(2, noon), listed(1, noon), listed(4, before)}},
			[]int{2, 1}},
		{"on another page", byService, [][]record{{listed(3, after)}, {listed(1, noon)}}, []int{1}},
		{"from a number", `"from":"+15005550006"`, [][]record{{listed(1, noon)}}, []int{1}},
		{"from another number", `"from":"+15005550007"`, [][]record{{listed(1, noon)}}, nil},
		{"another service", byService, [][]record{{with(func(r *record) { r.Service = "" })}}, nil},
		{"another text", byService, [][]record{{with(func(r *record) { r.Body = "Grüße" })}}, nil},
		{"to another number", byService, [][]record{{with(func(r *record) { r.To = number(2) })}}, nil},
		{"a call", byService, [][]record{{with(func(r *record) { r.SID = "CA1" })}}, nil},
	} {
		got, err := lookup(t, c.config, c.pages...)
		var want []string
		for _, n := range c.want {
			want = append(want, listed(n, noon).SID)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, want)
		}
	}
}

// A list that is older than the call is not read on.
func TestLookupEnds(t *testing.T) {
	t.Parallel()
	wrong := listed(1, noon, func(r *record) { r.Created = "2026-07-01" })
	if got, err := lookup(t, byService, []record{listed(1, noon), listed(2, noon.Add(-time.Hour))}, []record{wrong}); err != nil ||
		len(got) != 1 {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := lookup(t, byService, []record{wrong}); err == nil {
		t.Error("a list with another form of times is read")
	}
}

func TestLookupWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, reply := range []sendertest.Reply{{Status: 429}, {Status: 401, Body: `{}`}, {Body: "{]"}, {Status: 500}, {Status: 302},
		{Drop: true},
		{Body: `{"messages":[],"next_page_uri":"/2010-04-01/Accounts/AC1/Messages.json"}`}, {Body: strings.Repeat(" ", 70<<10)}} {
		s := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply { return reply })
		m := sender.Message{To: number(1), Text: "x"}
		if got, err := accountAt(t, s, byService, byKey, public).Lookup(t.Context(), &m, noon, noon); err == nil || len(got) != 0 {
			t.Errorf("%+v: %q, %v", reply, got, err)
		}
	}
}
