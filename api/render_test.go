package api

import (
	"strings"
	"testing"
)

// A template is not rendered with a row that is longer than Lemma reads. Without a profile key another is
// taken, and a campaign skips it.
func TestARowThatIsTooLarge(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.ExecDB(`delete from customers`)
	b.ExecDB(`insert into customers values ('1', 'one@shop.example', repeat('x', 2000000)), ('2', 'two@shop.example', repeat('x', 2000000)),
		('2', 'two@shop.example', 'Ada')`)
	tpl := b.do("POST", "/v1/templates", object{"name": "Long", "subject": "Hi {{ name }}", "text": "x"}).is(201).id()
	render := "/v1/templates/" + tpl + "/render"
	b.do("POST", render, object{"audience_id": w.audience, "profile_key": "1"}).fault(422, "/profile_key", "row_too_large")
	for _, of := range []object{{"audience_id": w.audience}, {"audience_id": w.audience, "profile_key": "2"}} {
		if got := b.do("POST", render, of).is(200); got.text("subject") != "Hi Ada" {
			t.Errorf("%s", got.body)
		}
	}
	made := b.do("POST", "/v1/campaigns", w.newCampaign(object{"template_id": tpl})).is(201)
	got := b.do("GET", made.header.Get("Location")+"/preview", nil).is(200)
	if !strings.Contains(string(got.body), `"sendable":1,"skipped_by":{"row_too_large":2}`) {
		t.Errorf("%s", got.body)
	}
}
