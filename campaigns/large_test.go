package campaigns

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/audience"
	"lemma/message"
)

// A row that is longer than Lemma reads is skipped, and the others are sent. Its address is free for
// other profiles; one that has opted out holds it.
func TestRowsThatAreTooLarge(t *testing.T) {
	b := reach(t, `(id, email, phone, out) values
		('1', 'one@shop.example', 'x', false), ('2', 'two@shop.example', repeat('x', 3000000), false),
		('3', 'two@shop.example', 'x', false), ('4', 'four@shop.example', repeat('x', 3000000), true),
		('5', 'four@shop.example', 'x', false), ('6', repeat('six', 1000000), 'x', false),
		('7', 'seven@shop.example', repeat('x', 3000000), false), ('7', 'seven@shop.example', 'x', false),
		('8', 'eight@shop.example', repeat('x', 1100000), false), ('8', 'eight@shop.example', 'x', true),
		('9', 'four@shop.example', repeat('x', 3000000), false), ('9', 'four@shop.example', 'x', false),
		('91', null, repeat('x', 3000000), false), ('91', null, 'x', false)`)
	tpl, err := b.deps.Templates.Create(t.Context(), b.Workspace,
		message.NewTemplate{ID: lemma.NewID(), Name: "long", Content: message.Content{Subject: "Hi {{ phone }}", Text: "t"}})
	b.Must(err)
	b.templates[lemma.Email] = tpl.ID
	c, p, rows := b.send(lemma.Email)
	want := []string{"1 one@shop.example ", "2 two@shop.example row_too_large", "3 two@shop.example ",
		"4 four@shop.example unsubscribed", "5 four@shop.example duplicate_address", "6  row_too_large",
		"7 seven@shop.example ", "7 seven@shop.example row_too_large",
		"8 eight@shop.example unsubscribed", "9 four@shop.example row_too_large", "91  row_too_large"}
	slices.Sort(rows)
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
	b.agree(c, p, rows)
	b.ExecDB(`update people set email = repeat('x', 3000000) where id = '1'`) // before the call
	var again []string
	_, err = b.Recheck(t.Context(), b.Workspace, c.ID, []string{"1", "3"}, func(r audience.Row) error {
		again = append(again, r.Key+" "+r.Email)
		return nil
	})
	if slices.Sort(again); err != nil || !slices.Equal(again, []string{"1 ", "3 two@shop.example"}) {
		t.Errorf("%q, %v", again, err)
	}
}
