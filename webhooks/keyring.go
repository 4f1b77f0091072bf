package webhooks

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgerr"
	"lemma/signing"
)

// overlap is how long a secret signs after it was rotated.
const overlap = 24 * time.Hour

// maxKeys bounds the secrets that sign at a time, since each adds a signature to a
// header: repeated rotations must not make it long.
const maxKeys = 4

// keyring contains an endpoint's secrets, the newest first, and the database's time
// when they were read.
type keyring struct {
	keys []key
	now  time.Time
}

// key is one secret. Its JSON is what is sealed.
type key struct {
	Secret  []byte     `json:"secret"`
	Until   *time.Time `json:"until,omitempty"`  // it signs until then; nil: the current one
	Request uuid.UUID  `json:"request,omitzero"` // created it
}

// rotated is the keyring with a new secret in front, created by a request.
func (r keyring) rotated(request uuid.UUID) keyring {
	fresh := make([]byte, 32)
	rand.Read(fresh) // never fails
	next := keyring{keys: []key{{Secret: fresh, Request: request}}, now: r.now}
	for _, k := range r.valid() {
		if k.Until == nil {
			end := r.now.Add(overlap)
			k.Until = &end
		}
		next.keys = append(next.keys, k)
	}
	next.keys = next.keys[:min(len(next.keys), maxKeys)]
	return next
}

// valid are the secrets that sign now.
func (r keyring) valid() (keys []key) {
	for _, k := range r.keys {
		if k.Until == nil || r.now.Before(*k.Until) {
			keys = append(keys, k)
		}
	}
	return keys
}

// madeBy reports whether a request created one of the secrets.
func (r keyring) madeBy(request uuid.UUID) bool {
	return request != uuid.Nil && slices.ContainsFunc(r.keys, func(k key) bool { return k.Request == request })
}

// current is the newest secret as Standard Webhooks writes it.
func (r keyring) current() string {
	return signing.Secret(r.keys[0].Secret)
}

// sign writes the headers of a message: one signature for each secret.
func (r keyring) sign(h http.Header, id string, at time.Time, body []byte) {
	var keys [][]byte
	for _, k := range r.valid() {
		keys = append(keys, k.Secret)
	}
	signing.Set(h, keys, id, at, body)
}

// place identifies the only row in which a sealed secret can be opened.
func place(ws, id uuid.UUID) []string {
	return []string{"webhook endpoint", ws.String(), id.String()}
}

func (w *Webhooks) seal(ws, id uuid.UUID, r keyring) ([]byte, error) {
	plain, err := json.Marshal(r.keys) //nolint:gosec // the result is encrypted
	if err != nil {
		return nil, fmt.Errorf("seal webhook secret: %w", err)
	}
	return w.box.Seal(plain, place(ws, id)...), nil
}

func (w *Webhooks) open(ws, id uuid.UUID, sealed []byte, now time.Time) (keyring, error) {
	r := keyring{now: now}
	plain, err := w.box.Open(sealed, place(ws, id)...)
	if err == nil {
		err = json.Unmarshal(plain, &r.keys)
	}
	if err == nil && len(r.keys) == 0 {
		err = errors.New("it contains none")
	}
	return r, lemma.Wrap(err, "open secret of webhook endpoint %s", id)
}

// maxKeyrings is how many endpoints have a keyring that is kept.
const maxKeyrings = 1000

// keyrings are the opened secrets of endpoints that were called. They are opened again when
// their sealed form has changed.
type keyrings struct {
	mu sync.Mutex
	of map[[2]uuid.UUID]opened // by workspace and endpoint
}

type opened struct {
	sealed []byte
	keys   []key
}

// openOnce opens the secrets of an endpoint, unless they were opened before.
func (w *Webhooks) openOnce(ws, id uuid.UUID, sealed []byte, now time.Time) (keyring, error) {
	s, of := &w.keyrings, [2]uuid.UUID{ws, id}
	s.mu.Lock()
	kept := s.of[of]
	s.mu.Unlock()
	if kept.keys != nil && bytes.Equal(kept.sealed, sealed) {
		return keyring{keys: kept.keys, now: now}, nil
	}
	r, err := w.open(ws, id, sealed, now)
	if err != nil {
		return r, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil || len(s.of) >= maxKeyrings {
		s.of = map[[2]uuid.UUID]opened{}
	}
	s.of[of] = opened{sealed, r.keys}
	return r, nil
}

// withKeys reads an endpoint and its secrets.
func (w *Webhooks) withKeys(ctx context.Context, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, ws, id uuid.UUID, lock string) (e Endpoint, r keyring, err error) {
	var sealed []byte
	var now time.Time
	err = db.QueryRow(ctx, `
		select `+endpointColumns+`, secret, now() from webhook_endpoints where workspace_id = $1 and id = $2`+lock, ws, id).
		Scan(&e.ID, &e.WorkspaceID, &e.Name, &e.URL, &e.Subscriptions, &e.Sequence, &e.Status, &e.StatusReason, &e.DisabledAt,
			&e.Version, &e.CreatedAt, &e.UpdatedAt, &sealed, &now)
	if err := pgerr.Row(err, "webhook endpoint", "read webhook endpoint"); err != nil {
		return Endpoint{}, keyring{}, err
	}
	r, err = w.open(ws, id, sealed, now)
	return e, r, err
}
