package campaigns

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// The content of a campaign has its conversion, and each notification is found by it,
// whether it was copied or inserted.
func TestNotificationsOfAConversion(t *testing.T) {
	for name, converts := range map[string]bool{"with a conversion": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 3)
			ctx := context.Background()
			c := b.draft()
			if converts {
				c, err := b.Update(ctx, b.Workspace, c.ID, nil, Patch{Conversion: &Conversion{"bought", 36 * time.Hour}})
				b.Must(err)
				if c.ConversionEvent != "bought" || c.ConversionWithin != 36*time.Hour {
					t.Errorf("%+v", c.Conversion)
				}
			}
			_, err := b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
			b.Must(err)
			b.fanout(c.ID)
			want := map[bool]string{true: "3 true bought 36:00:00", false: "0 false"}[converts]
			got := pgtest.One[string](t, b.Pool, `
				select concat_ws(' ', count(*) filter (where n.converts), bool_or(n.converts is not null)::text, min(c.conversion_event),
					min(c.conversion_within)::text)
				from notifications n join contents c on c.id = n.origin_id where n.workspace_id = $1`, b.Workspace)
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

func TestConversionsAreChecked(t *testing.T) {
	b := setup(t, 1)
	c := b.draft()
	for want, one := range map[string]Conversion{
		"/conversion/event":  {"", time.Hour},
		"/conversion/within": {"bought", lemma.MaxConversion + time.Second},
	} {
		_, err := b.Update(context.Background(), b.Workspace, c.ID, nil, Patch{Conversion: &one})
		var e *lemma.Error
		if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Pointer != want {
			t.Errorf("%+v: %v", one, err)
		}
	}
}
