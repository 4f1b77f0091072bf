package sender

import (
	"context"
	"testing"

	"github.com/google/uuid"
)

// A batch that a claim, its deadline or the reaper has ended is reported.
func TestTheEndOfABatchIsReported(t *testing.T) {
	for name, end := range map[string]func(*bundle, *Sender){
		"done": func(b *bundle, s *Sender) { b.work(s) },
		"expired": func(b *bundle, s *Sender) {
			b.Exec(`update batches set expires_at = now()`)
			_, err := s.Sweep(context.Background())
			b.Must(err)
		},
		"reaped": func(b *bundle, s *Sender) {
			b.Exec(`update batches set status = 'leased', leased_by = 't', lease_until = now() - interval '1 minute'`)
			_, err := s.Reap(context.Background())
			b.Must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ref := b.insert(5, 5, 2)[0]
			s := b.sender()
			var ended [][2]uuid.UUID
			s.ended = func(ws, origin uuid.UUID) { ended = append(ended, [2]uuid.UUID{ws, origin}) }
			end(b, s)
			if len(ended) != 1 || ended[0] != [2]uuid.UUID{ref.WorkspaceID, ref.OriginID} {
				t.Errorf("reported %v, want the origin of %v", ended, ref)
			}
		})
	}
}
