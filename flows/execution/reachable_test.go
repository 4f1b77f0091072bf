package execution

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/address"
	"lemma/audience"
)

// A message has the data of the row that has its address.
func TestMessagesHaveTheDataOfTheirRow(t *testing.T) {
	t.Parallel()
	profile := &Profile{Row: audience.Row{Key: "a", Push: "", Payload: `{"device":"none"}`}, others: []audience.Row{
		{Key: "a", Push: `["phone","watch"]`, Payload: `{"device":"phone"}`},
		{Key: "a", Push: `["tablet","phone"]`, Payload: `{"device":"tablet"}`},
	}}
	x := &Execution{profile: profile}
	got := map[string]string{}
	for _, out := range x.notifications(&Send{Channel: lemma.Push, variables: []string{"device"}}, "n") {
		got[out.Address] = out.Payload
	}
	want := map[string]string{"phone": `{"device":"phone"}`, "watch": `{"device":"phone"}`, "tablet": `{"device":"tablet"}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What can be sent to comes before what cannot, also beyond the bound. What is left out is one
// notification, in the channels in which something is.
func TestAddressesBeyondTheBound(t *testing.T) {
	t.Parallel()
	row := func(push string) audience.Row { return audience.Row{Key: "a", Email: "a@shop.example", Push: push} }
	tokens := func(from, to int) string {
		all := make([]string, 0, to-from)
		for i := range to - from {
			all = append(all, fmt.Sprintf(`"t%d"`, from+i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	bad := make([]audience.Row, 100)
	for i := range bad {
		bad[i] = row(fmt.Sprint("bad\n", i))
	}
	for name, c := range map[string]struct {
		profile      Profile
		sent, faults int
		more         bool
	}{
		"one good after many bad":      {Profile{Row: bad[0], others: append(bad[1:], row("good"))}, 1, 99, true},
		"the 21st token of another":    {Profile{Row: row("t20"), others: []audience.Row{row(tokens(0, 25))}}, 21, 0, true},
		"rows left out":                {Profile{Row: row("a"), others: []audience.Row{row("b")}, more: []lemma.Channel{lemma.Push}}, 2, 0, true},
		"rows left out of other kinds": {Profile{Row: row("a"), more: []lemma.Channel{lemma.Email}}, 1, 0, false},
	} {
		sent, faults, more := 0, 0, false
		for _, a := range c.profile.reachable(lemma.Push) {
			switch a.Fault {
			case "":
				sent++
			case address.TooMany:
				more = true
			default:
				faults++
			}
		}
		if sent != c.sent || faults != c.faults || more != c.more {
			t.Errorf("%s: %d are sent to, %d are not valid, others: %t", name, sent, faults, more)
		}
	}
}
