package execution

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
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
