package links_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/links"
	"lemma/pgtest"
	"lemma/secrets"
)

type fixture struct {
	*links.Links
	t    *testing.T
	pool *pgxpool.Pool
	box  *secrets.Box
	ws   uuid.UUID
}

func setup(t *testing.T) fixture {
	t.Helper()
	t.Parallel()
	pool, box := pgtest.DB(t), pgtest.Box(t)
	return fixture{links.New(pool, box, nil), t, pool, box, pgtest.Workspace(t, pool)}
}

// sign signs for a content that was created at a time, in a process of its own.
func (f fixture) sign(ws uuid.UUID, created time.Time, payload string) string {
	f.t.Helper()
	s, err := links.New(f.pool, f.box, nil).Signer(f.t.Context(), ws, created)
	if err != nil {
		f.t.Fatal(err)
	}
	return s.Sign(links.Unsubscribe, []byte(payload))
}

func (f fixture) valid(token, payload string) {
	f.t.Helper()
	ws, got, err := f.Verify(f.t.Context(), links.Unsubscribe, token)
	if err != nil || ws != f.ws || string(got) != payload {
		f.t.Errorf("%q of %s, %v", got, ws, err)
	}
}

func TestATokenHasItsWorkspaceAndPayload(t *testing.T) {
	f := setup(t)
	now := time.Now()
	for _, payload := range []string{"", "x", strings.Repeat("long ", links.MaxPayload/5)} {
		token := f.sign(f.ws, now, payload)
		f.valid(token, payload)
		if again := f.sign(f.ws, now, payload); again != token {
			t.Errorf("two tokens of one payload: %s, %s", token, again)
		}
		if len(token) > links.MaxToken {
			t.Errorf("a token has %d bytes", len(token))
		}
	}
}

// Every other text is refused with the same error.
func TestTokensThatAreRefused(t *testing.T) {
	f := setup(t)
	other := pgtest.Workspace(t, f.pool)
	token := f.sign(f.ws, time.Now(), "payload!")
	foreign := f.sign(other, time.Now(), "payload!")
	wrong := map[string]string{
		"empty": "", "one byte": "A", "of another purpose": f.purpose(2), "longer": token + "AAAA", "padded": token + "=",
		"with a line break": token[:8] + "\n" + token[8:], "in other letters": strings.ToUpper(token),
		"too long": strings.Repeat("A", links.MaxToken+4), "its payload in another workspace": foreign[:30] + token[30:],
		"of a workspace that does not exist": foreign[:4] + strings.Repeat("A", 21) + foreign[25:],
	}
	for i := range token {
		wrong["cut at "+token[:i]] = token[:i]
		forged := []byte(token)
		forged[i]++ // of the last one, bits that a lenient decoder ignores
		wrong["changed to "+string(forged)] = string(forged)
	}
	for what, text := range wrong {
		_, _, err := f.Verify(t.Context(), links.Unsubscribe, text)
		if lemma.KindOf(err) != lemma.NotFound || err.Error() != "no such link" {
			t.Errorf("%s: %v", what, err)
		}
	}
	f.valid(token, "payload!")
}

// purpose signs for another purpose.
func (f fixture) purpose(p links.Purpose) string {
	s, err := f.Signer(f.t.Context(), f.ws, time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	return s.Sign(p, []byte("payload"))
}

// A content keeps its key. New contents get the new one after RotationDelay, and the
// links of all keys go on working, also in processes that know only the old one.
func TestRotation(t *testing.T) {
	f := setup(t)
	ctx, now := t.Context(), time.Now()
	old := f.sign(f.ws, now, "p")
	f.valid(old, "p")
	id := lemma.NewID()
	made, err := f.Rotate(ctx, f.ws, id)
	if err != nil || made.Number != 2 || made.ID != id {
		t.Fatalf("%+v, %v", made, err)
	}
	if again, err := f.Rotate(ctx, f.ws, id); err != nil || again != made {
		t.Errorf("a repeated rotation: %+v, %v", again, err)
	}
	if f.sign(f.ws, now, "p") != old {
		t.Error("a content changed its key")
	}
	if f.sign(f.ws, made.CreatedAt.Add(links.RotationDelay-time.Second), "p") != old {
		t.Error("a key signs for contents that were created before all processes find it")
	}
	fresh := f.sign(f.ws, made.CreatedAt.Add(links.RotationDelay), "p")
	if fresh == old {
		t.Error("the new key does not sign")
	}
	f.valid(old, "p")
	f.valid(fresh, "p")
}

// Processes that need the first key at the same time agree on it, and so do rotations.
func TestConcurrentKeys(t *testing.T) {
	f := setup(t)
	tokens := make([]string, 8)
	var all sync.WaitGroup
	for i := range tokens {
		all.Go(func() { tokens[i] = f.sign(f.ws, time.Now(), "p") })
	}
	all.Wait()
	for _, token := range tokens {
		f.valid(token, "p")
		if token != tokens[0] {
			t.Error("two first keys")
		}
	}
	for range 4 {
		all.Go(func() {
			if k, err := f.Rotate(t.Context(), f.ws, lemma.NewID()); err != nil || k.Number < 2 {
				t.Errorf("%+v, %v", k, err)
			}
		})
	}
	all.Wait()
	numbers := pgtest.Column[int](t, f.pool, `select number from link_keys where workspace_id = $1 order by number`, f.ws)
	for i, n := range numbers {
		if n != i+1 {
			t.Errorf("keys %v", numbers)
		}
	}
}

// A key is sealed for its row.
func TestKeysAreSealed(t *testing.T) {
	f := setup(t)
	f.sign(f.ws, time.Now(), "p")
	secret := pgtest.One[[]byte](t, f.pool, `select secret from link_keys where workspace_id = $1`, f.ws)
	r, err := f.box.Inspect(t.Context(), f.Sealed())
	if err != nil || r.Rows != 1 || r.Current != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	other := pgtest.Workspace(t, f.pool)
	pgtest.Exec(t, f.pool, `insert into link_keys (workspace_id, number, id, secret) values ($1, 1, $2, $3)`, other, lemma.NewID(), secret)
	if _, err := f.Signer(t.Context(), other, time.Now()); err == nil {
		t.Error("a key that was copied from another row signs")
	}
}

// A key in memory needs no database.
func TestKnownKeysNeedNoDatabase(t *testing.T) {
	f := setup(t)
	token := f.sign(f.ws, time.Now(), "p")
	f.valid(token, "p")
	pgtest.Exec(t, f.pool, `delete from link_keys`)
	f.valid(token, "p")
	if _, _, err := links.New(f.pool, f.box, nil).Verify(t.Context(), links.Unsubscribe, token); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("without its key: %v", err)
	}
	f.pool.Close()
	if _, _, err := links.New(f.pool, f.box, nil).Verify(t.Context(), links.Unsubscribe, token); lemma.KindOf(err) == lemma.NotFound {
		t.Errorf("without the database: %v", err)
	}
}

func BenchmarkSign(b *testing.B) {
	pool := pgtest.DB(b)
	s, err := links.New(pool, pgtest.Box(b), nil).Signer(b.Context(), pgtest.Workspace(b, pool), time.Now())
	if err != nil {
		b.Fatal(err)
	}
	payload := bytes.Repeat([]byte{7}, 64)
	for b.Loop() {
		s.Sign(links.Unsubscribe, payload)
	}
}

func BenchmarkVerify(b *testing.B) {
	pool := pgtest.DB(b)
	l := links.New(pool, pgtest.Box(b), nil)
	s, err := l.Signer(b.Context(), pgtest.Workspace(b, pool), time.Now())
	if err != nil {
		b.Fatal(err)
	}
	token := s.Sign(links.Unsubscribe, bytes.Repeat([]byte{7}, 64))
	for b.Loop() {
		if _, _, err := l.Verify(b.Context(), links.Unsubscribe, token); err != nil {
			b.Fatal(err)
		}
	}
}

// After the secret key was lost, links of sent messages do not verify. When the unreadable
// keys are deleted, contents of any time are signed with a new one.
func TestALostKey(t *testing.T) {
	f := setup(t)
	ctx, now := t.Context(), time.Now()
	old := f.sign(f.ws, now, "p")
	box := pgtest.Box(t) // with another key
	after := links.New(f.pool, box, nil)
	if _, err := after.Signer(ctx, f.ws, now); err == nil {
		t.Error("a key that cannot be decrypted signs")
	}
	if _, _, err := after.Verify(ctx, links.Unsubscribe, old); err == nil || lemma.KindOf(err) == lemma.NotFound {
		t.Errorf("a link whose key cannot be decrypted: %v", err)
	}
	found, err := box.Inspect(ctx, after.Sealed())
	if err != nil || len(found.Unreadable) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	resealed := found.Unreadable[0]
	resealed.Text = []byte("as it was before another process has encrypted it with a key that is known")
	for want, rows := range [][]secrets.Sealed{{resealed}, found.Unreadable} {
		if n, err := after.Delete(ctx, rows); n != want || err != nil {
			t.Fatalf("%d keys deleted, want %d: %v", n, want, err)
		}
	}
	s, err := links.New(f.pool, box, nil).Signer(ctx, f.ws, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := after.Verify(ctx, links.Unsubscribe, s.Sign(links.Unsubscribe, []byte("p"))); err != nil {
		t.Errorf("a new link: %v", err)
	}
	if _, _, err := after.Verify(ctx, links.Unsubscribe, old); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("an old link: %v", err)
	}
}
