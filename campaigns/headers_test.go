package campaigns

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/message"
	"lemma/pgtest"
)

// The variables of headers are stored with each notification, so that both attempts
// render the same; a preview shows them rendered.
func TestHeadersAreRenderedFromThePayload(t *testing.T) {
	b := setup(t, 2)
	ctx := context.Background()
	c := b.draft()
	_, err := b.Update(ctx, b.Workspace, c.ID, nil, Patch{Headers: map[string]string{"X-Customer": "{{ id }}", "X-Fixed": "1"}})
	b.Must(err)
	r, err := b.Preview(ctx, b.Workspace, c.ID)
	b.Must(err)
	want := [][2]string{{"List-Unsubscribe", "<" + message.SampleUnsubscribeURL("") + ">"},
		{"List-Unsubscribe-Post", "List-Unsubscribe=One-Click"}, {"X-Customer", "1"}, {"X-Fixed", "1"}}
	if d := cmp.Diff(want, r.Sample[0].Headers); d != "" || r.Sample[0].Error != "" {
		t.Errorf("%s %s", r.Sample[0].Error, d)
	}
	_, err = b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	b.fanout(c.ID)
	payload := pgtest.One[string](b.T, b.Pool, `select payload from notifications where workspace_id = $1 and profile_key = '2'`, b.Workspace)
	if payload != `{"id":"2","name":"N2"}` {
		t.Error(payload)
	}
}

func TestHeadersAreCheckedBeforeASend(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	c := b.draft()
	pointers := func(err error) (all []string) {
		var e *lemma.Error
		if !errors.As(err, &e) || e.Kind != lemma.Invalid {
			t.Fatalf("got %v", err)
		}
		for _, f := range e.Fields {
			all = append(all, f.Pointer+" "+f.Code)
		}
		return all
	}
	_, err := b.Update(ctx, b.Workspace, c.ID, nil, Patch{FromName: new("{{ name }}"), ReplyTo: new("{{name}}@shop.example"),
		Headers: map[string]string{"X-A": "{{ name", "X-B": "{{ id | unknown }}"}})
	if d := cmp.Diff([]string{"/from/name not_rendered", "/reply_to not_rendered", "/headers/X-A unclosed", "/headers/X-B filter_unknown"},
		pointers(err)); d != "" {
		t.Error(d)
	}
	_, err = b.Update(ctx, b.Workspace, c.ID, nil, Patch{Headers: map[string]string{"X-A": "{{ nickname }}"}})
	b.Must(err)
	_, err = b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
	if d := cmp.Diff([]string{"/headers unknown_variable"}, pointers(err)); d != "" {
		t.Error(d)
	}
}
