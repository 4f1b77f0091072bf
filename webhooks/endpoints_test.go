package webhooks

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/page"
	"lemma/pgtest"
)

func TestEndpointLife(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, secret := b.endpoint("/hook")
	if !strings.HasPrefix(secret, "whsec_") || e.Version != 1 {
		t.Fatalf("%+v with secret %q", e, secret)
	}
	got, err := b.Get(t.Context(), b.Workspace, e.ID)
	b.Must(err)
	if diff := cmp.Diff(e, got); diff != "" {
		t.Error(diff)
	}
	changed, err := b.Update(t.Context(), b.Workspace, e.ID, new(1), Patch{Name: new("renamed"), URL: new("https://example.com/x?y=1")})
	b.Must(err)
	if changed.Name != "renamed" || changed.URL != "https://example.com/x?y=1" || changed.Version != 2 {
		t.Errorf("%+v", changed)
	}
	if _, err := b.Update(t.Context(), b.Workspace, e.ID, new(1), Patch{Name: new("again")}); lemma.KindOf(err) != lemma.Stale {
		t.Errorf("an update of an old version: %v", err)
	}
	b.Must(b.Delete(t.Context(), b.Workspace, e.ID))
	if _, err := b.Get(t.Context(), b.Workspace, e.ID); lemma.KindOf(err) != lemma.NotFound {
		t.Error(err)
	}
}

func TestEndpointsOfAnotherWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/")
	other := pgtest.Workspace(t, b.Pool)
	_, err := b.Get(t.Context(), other, e.ID)
	_, updated := b.Update(t.Context(), other, e.ID, nil, Patch{Name: new("x")})
	_, _, rotated := b.Rotate(t.Context(), other, e.ID, lemma.NewID())
	deleted := b.Delete(t.Context(), other, e.ID)
	for name, err := range map[string]error{"get": err, "update": updated, "rotate": rotated, "delete": deleted} {
		if lemma.KindOf(err) != lemma.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, _, err := b.List(t.Context(), other, page.Query{Limit: 10}); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestEndpointsAreListedInPages(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	var want, got []uuid.UUID
	for range 5 {
		e, _ := b.endpoint("/")
		want = append([]uuid.UUID{e.ID}, want...)
	}
	for _, e := range pgtest.Pages(t, 2, func(cursor string) ([]Endpoint, string, error) {
		return b.List(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: cursor})
	}) {
		got = append(got, e.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCreateTwiceMakesOne(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	n := NewEndpoint{ID: lemma.NewID(), Name: "shop", URL: "https://example.com"}
	first, secret, err := b.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	again, same, err := b.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	if !cmp.Equal(first, again) || secret != same {
		t.Errorf("%+v with %q, then %+v with %q", first, secret, again, same)
	}
	_, _, err = b.Create(t.Context(), b.Workspace, NewEndpoint{ID: lemma.NewID(), Name: "shop", URL: "https://example.com"})
	if lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("a second endpoint with the same name: %v", err)
	}
}

func TestAddressesThatAreRefused(t *testing.T) {
	t.Parallel()
	strict, open := New(Deps{}, Options{}), New(Deps{}, Options{AllowPrivate: true})
	for _, good := range []string{
		"https://example.com", "https://example.com:8443/a/b?c=d", "https://8.8.8.8/", "https://localhost/", "https://münchen.example/",
	} {
		if err := strict.checkURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "example.com", "/hook", "https://", "https:///x", "https://:443/", "ftp://example.com", "javascript:alert(1)",
		"https:example.com",
		"https://user@example.com", "https://user:pass@example.com", "https://example.com#x", "https://example.com#",
		"https://example.com:0", "https://example.com:65536", "https://example.com:", "https://example.com:x", "https://exa mple.com",
		"https://example.com/\n",
		"https://169.254.169.254/latest", "https://[fd00:ec2::254]/", "https://[::ffff:169.254.169.254]/", "https://0.0.0.0/",
		"https://example.com/" + strings.Repeat("x", 2000),
	} {
		for _, w := range []*Webhooks{strict, open} {
			if err := w.checkURL(bad); lemma.KindOf(err) != lemma.Invalid {
				t.Errorf("%s was accepted: %v", bad, err)
			}
		}
	}
	for _, inside := range []string{
		"http://example.com", "https://127.0.0.1", "https://[::1]:8080", "https://10.0.0.1", "https://[::ffff:10.0.0.1]",
	} {
		if err := strict.checkURL(inside); err == nil {
			t.Errorf("%s was accepted", inside)
		}
		if err := open.checkURL(inside); err != nil {
			t.Errorf("%s: %v", inside, err)
		}
	}
}

func TestSecretsAreSealedForTheirRow(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, secret := b.endpoint("/")
	sealed := pgtest.One[[]byte](b.T, b.Pool, `select secret from webhook_endpoints`)
	if bytes.Contains(sealed, []byte(strings.TrimPrefix(secret, "whsec_"))) {
		t.Error("the table contains the secret")
	}
	other, _ := b.endpoint("/")
	b.Exec(`update webhook_endpoints set secret = $1 where id = $2`, sealed, other.ID)
	b.write(b.message(other))
	b.run(b.Webhooks, 1)
	if state, reason, _, _, _ := b.row(); state != "pending" || reason != ReasonSecret || len(b.receiver.all()) != 0 {
		t.Errorf("%s, %s; %d calls", state, reason, len(b.receiver.all()))
	}
	if _, err := b.open(b.Workspace, e.ID, sealed, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestOldSecretsSignForADay(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := keyring{now: start}.rotated(uuid.Nil)
	first := r.current()
	r = r.rotated(uuid.Nil)
	signs := func(after time.Duration) int {
		r.now = start.Add(after)
		h := http.Header{}
		r.sign(h, "msg_1", r.now, []byte("{}"))
		return len(strings.Fields(h.Get("webhook-signature")))
	}
	if r.current() == first || signs(0) != 2 || signs(24*time.Hour-time.Second) != 2 || signs(24*time.Hour) != 1 {
		t.Errorf("%d, %d and %d signatures", signs(0), signs(24*time.Hour-time.Second), signs(24*time.Hour))
	}
	r.now = start
	for range 10 {
		r = r.rotated(uuid.Nil)
	}
	if len(r.keys) != maxKeys || signs(0) != maxKeys || signs(48*time.Hour) != 1 {
		t.Errorf("%d keys after ten rotations", len(r.keys))
	}
}

// The secret of an endpoint whose key is lost can be rotated: the new one signs alone.
func TestALostSecretIsRotated(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/")
	b.box = pgtest.Box(t) // with another key
	after := b.another(b.Pool, Options{AllowPrivate: true})
	_, secret, err := after.Rotate(t.Context(), b.Workspace, e.ID, lemma.NewID())
	b.Must(err)
	_, keys, err := after.withKeys(t.Context(), b.Pool, b.Workspace, e.ID, "")
	if err != nil || len(keys.valid()) != 1 || keys.current() != secret {
		t.Errorf("%d secrets, %v", len(keys.valid()), err)
	}
}
