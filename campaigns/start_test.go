package campaigns

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/message"
)

// A draft that is changed between the check of a send, or of a schedule, and its start is checked again.
func TestADraftThatIsChangedBeforeItsStart(t *testing.T) {
	for name, begin := range map[string]func(*bundle, uuid.UUID) error{
		"send": func(b *bundle, id uuid.UUID) error {
			_, err := b.Send(context.Background(), b.Workspace, id, uuid.Nil)
			return err
		},
		"schedule": func(b *bundle, id uuid.UUID) error {
			_, err := b.Schedule(context.Background(), b.Workspace, id, time.Now().Add(time.Hour), uuid.Nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			id := b.draft().ID
			tpl, err := b.deps.Templates.Create(t.Context(), b.Workspace,
				message.NewTemplate{ID: lemma.NewID(), Name: "odd", Content: message.Content{Subject: "{{ shoe_size }}", Text: "t"}})
			b.Must(err)
			checks := 0
			b.Hook = func(_ context.Context, at string, _ uuid.UUID) {
				if at == "checked" {
					if checks++; checks == 1 {
						_, err := b.Update(context.Background(), b.Workspace, id, nil, Patch{TemplateID: &tpl.ID})
						b.Must(err)
					}
				}
			}
			var e *lemma.Error
			if err := begin(b, id); !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Code != "unknown_variable" {
				t.Errorf("%v", err)
			}
			if got := b.get(id); got.Status != Draft || checks != 1 {
				t.Errorf("%s after %d checks", got.Status, checks)
			}
		})
	}
}

// A draft that is changed after each check is not sent.
func TestADraftThatIsChangedAgainAndAgain(t *testing.T) {
	b := setup(t, 1)
	id := b.draft().ID
	checks := 0
	b.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if at == "checked" {
			checks++
			b.Exec(`update campaigns set version = version + 1 where id = $1`, id)
		}
	}
	if _, err := b.Send(t.Context(), b.Workspace, id, uuid.Nil); lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("%v", err)
	}
	if got := b.get(id); got.Status != Draft || checks != 3 {
		t.Errorf("%s after %d checks", got.Status, checks)
	}
}

// A draft that is deleted after the check is not found.
func TestADraftThatIsDeletedWhileItIsSent(t *testing.T) {
	b := setup(t, 1)
	id := b.draft().ID
	b.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if at == "checked" {
			b.Must(b.Delete(t.Context(), b.Workspace, id))
		}
	}
	if _, err := b.Send(t.Context(), b.Workspace, id, uuid.Nil); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("%v", err)
	}
}
