package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/links"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/secrets"
	"lemma/webhooks"
)

// sealed inserts a row into each table with secrets, encrypted with keys.
func sealed(t *testing.T, pool *pgxpool.Pool, keys string, ws uuid.UUID, name string) {
	t.Helper()
	box, err := secrets.ParseKeys(keys)
	if err != nil {
		t.Fatal(err)
	}
	dsn := "postgres://reader:hunter2@db.shop.example:5432/shop?sslmode=verify-full"
	if _, err := audience.New(pool, box, audience.Options{}).
		CreateSource(t.Context(), ws, audience.NewSource{ID: lemma.NewID(), Name: name, Kind: "postgres", DSN: dsn}); err != nil {
		t.Fatal(err)
	}
	check := func(string, json.RawMessage, json.RawMessage) error { return nil }
	if _, err := providers.New(pool, box, check).Create(t.Context(), ws, providers.NewProvider{ID: lemma.NewID(), Name: name, Kind: "smtp",
		Config: json.RawMessage(`{"host":"mail.shop.example","port":587}`), Secrets: json.RawMessage(`{"password":"hunter2"}`)}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := webhooks.New(webhooks.Deps{Pool: pool, Box: box}, webhooks.Options{}).Create(t.Context(), ws,
		webhooks.NewEndpoint{ID: lemma.NewID(), Name: name, URL: "https://shop.example/hook"}); err != nil {
		t.Fatal(err)
	}
}

// The steps of docs/guides/rotate-the-secret-key.md, from a key without a name to another. At each of
// them every secret opens, and secrets made in between follow.
func TestRotateTheSecretKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws := pgtest.Workspace(t, pool)
	before, after := secrets.NewKey(), secrets.NewKey()
	with := func(keys string) []string { return append(on(pool), "LEMMA_SECRET_KEY="+keys) }
	doctor := func(keys string) string { return mustRun(t, with(keys), "doctor", "--allow-no-fsync") }

	sealed(t, pool, before, ws, "before")
	if out := doctor(before); strings.Count(out, "all 1 are encrypted with the first key") != 3 {
		t.Errorf("doctor before: %s", out)
	}
	if out := doctor(before + "," + after); strings.Count(out, "all 1 are encrypted with the first key") != 3 { // step 2
		t.Errorf("doctor at step 2: %s", out)
	}
	sealed(t, pool, before+","+after, ws, "a process at step 2")
	if out := doctor(after + "," + before); strings.Count(out,
		"all 2 are readable, 2 with another key than the first: run lemma secrets reseal") != 3 { // step 3
		t.Errorf("doctor at step 3: %s", out)
	}
	sealed(t, pool, after+","+before, ws, "a process at step 3")
	out := mustRun(t, with(after+","+before), "secrets", "reseal") // step 4
	if !strings.Contains(out, "All secrets are encrypted with the first key.") {
		t.Errorf("reseal: %s", out)
	}
	for _, table := range []string{"data_sources", "providers", "webhook_endpoints"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), table+" 3 2 1 0 0") {
			t.Errorf("counts of %s: %s", table, out)
		}
	}
	if again := mustRun(t, with(after+","+before), "secrets", "reseal"); !strings.Contains(strings.Join(strings.Fields(again), " "),
		"providers 3 0 3 0 0") {
		t.Errorf("reseal again: %s", again)
	}
	if out := doctor(after); strings.Count(out, "all 3 are encrypted with the first key") != 3 { // step 5
		t.Errorf("doctor at the end: %s", out)
	}
	var versions int
	if err := pool.QueryRow(t.Context(), `select max(version) from providers`).Scan(&versions); err != nil || versions != 1 {
		t.Errorf("resealing is an edit: version %d, %v", versions, err)
	}
}

// A secret that opens with none of the keys is reported and not changed.
func TestSecretsThatDoNotOpen(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	lost, key := secrets.NewKey(), secrets.NewKey()
	sealed(t, pool, lost, pgtest.Workspace(t, pool), "lost")
	sealed(t, pool, key, pgtest.Workspace(t, pool), "kept")
	env := append(on(pool), "LEMMA_SECRET_KEY="+key)
	out, err := lemmaWith(t, env, "doctor", "--allow-no-fsync")
	if err == nil || !strings.Contains(err.Error(), "3 secrets are unreadable") || strings.Contains(err.Error(), "refuses to send") {
		t.Errorf("doctor: %v", err)
	}
	for _, want := range []string{"1 of 2 are unreadable with every key (1: ds_", "1 of 2 are unreadable with every key (1: prv_",
		"1 of 2 are unreadable with every key (1: whe_"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not print %q: %s", want, out)
		}
	}
	out, err = lemmaWith(t, env, "secrets", "reseal")
	if err == nil || !strings.Contains(err.Error(), "3 rows are not encrypted with the first key") || !strings.Contains(out, "1: prv_") {
		t.Errorf("reseal: %v: %s", err, out)
	}
	if out := mustRun(t, append(on(pool), "LEMMA_SECRET_KEY="+key+","+lost), "secrets", "reseal"); !strings.Contains(out, "All secrets") {
		t.Errorf("reseal with the key found again: %s", out)
	}
	if out := mustRun(t, on(pool), "doctor", "--allow-no-fsync"); !strings.Contains(out, "not checked: LEMMA_SECRET_KEY is not set") {
		t.Errorf("doctor without a key: %s", out)
	}
}

// The steps of docs/guides/rotate-the-secret-key.md after the key was lost: link keys that
// cannot be read are deleted, those that can be read stay.
func TestDeleteLinkKeys(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	lost, key := secrets.NewKey(), secrets.NewKey()
	sign := func(keys string, ws uuid.UUID) (verify func() error) {
		box, err := secrets.ParseKeys(keys)
		if err != nil {
			t.Fatal(err)
		}
		s, err := links.New(pool, box, nil).Signer(t.Context(), ws, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		token := s.Sign(links.Unsubscribe, []byte("p"))
		return func() error {
			_, _, err := links.New(pool, box, nil).Verify(t.Context(), links.Unsubscribe, token)
			return err
		}
	}
	first, second := pgtest.Workspace(t, pool), pgtest.Workspace(t, pool)
	sign(lost, first)
	env := append(on(pool), "LEMMA_SECRET_KEY="+key)
	if out := mustRun(t, env, "secrets", "delete-link-keys", "--confirm"); !strings.Contains(out, "1 link keys are deleted, 0 are left") {
		t.Errorf("of the only secret: %s", out)
	}
	old := sign(lost, first)
	sealed(t, pool, lost, first, "lost")
	_, err := lemmaWith(t, env, "secrets", "delete-link-keys", "--confirm")
	if err == nil || !strings.Contains(err.Error(), "opens no secret") {
		t.Errorf("with a key that opens nothing: %v", err)
	}
	sealed(t, pool, key, second, "kept")
	kept := sign(key, second)
	if out := mustRun(t, env, "secrets", "delete-link-keys"); !strings.Contains(out, "1 of 2 link keys are unreadable") {
		t.Errorf("without --confirm: %s", out)
	}
	if err := old(); err != nil {
		t.Errorf("a key is deleted without --confirm: %v", err)
	}
	if out := mustRun(t, env, "secrets", "delete-link-keys", "--confirm"); !strings.Contains(out, "1 link keys are deleted, 1 are left") {
		t.Errorf("with --confirm: %s", out)
	}
	if err := old(); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("an old link: %v", err)
	}
	fresh := sign(key, first)
	for _, verify := range []func() error{kept, fresh} {
		if err := verify(); err != nil {
			t.Error(err)
		}
	}
	if out := mustRun(t, env, "secrets", "delete-link-keys", "--confirm"); !strings.Contains(out, "All 2 link keys are readable") {
		t.Errorf("again: %s", out)
	}
}

// A row that is changed between being read and being written keeps the change.
func TestResealLosesToAnEdit(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws := pgtest.Workspace(t, pool)
	before, after := secrets.NewKey(), secrets.NewKey()
	sealed(t, pool, before, ws, "mail")
	old, err := secrets.ParseKeys(before)
	if err != nil {
		t.Fatal(err)
	}
	box, err := secrets.ParseKeys(after + "," + before)
	if err != nil {
		t.Fatal(err)
	}
	all := providers.New(pool, old, func(string, json.RawMessage, json.RawMessage) error { return nil })
	store := providers.New(pool, box, nil).Sealed()
	var id uuid.UUID
	edits := 0
	place := store.Place // called for each row between reading and writing it
	store.Place = func(workspace, row uuid.UUID) []string {
		if edits++; edits == 1 { // a process with the old key in front is quicker
			id = row
			if _, err := all.Update(t.Context(), ws, id, nil, providers.Patch{Secrets: json.RawMessage(`{"password":"edited"}`)}); err != nil {
				t.Error(err)
			}
		}
		return place(workspace, row)
	}
	r, err := reseal(t.Context(), box, store)
	if err != nil || r.Changed != 0 || r.Resealed != 1 || r.Rows != 1 || edits != 2 {
		t.Errorf("%+v after %d writes, %v", r, edits, err)
	}
	if a, err := providers.New(pool, box, nil).Account(t.Context(), ws, id); err != nil || string(a.Secrets) != `{"password":"edited"}` {
		t.Errorf("%s, %v", a.Secrets, err)
	}
}

// More rows than fit into a page.
func TestResealPages(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	before, after := secrets.NewKey(), secrets.NewKey()
	old, err := secrets.ParseKeys(before)
	if err != nil {
		t.Fatal(err)
	}
	box, err := secrets.ParseKeys(after + "," + before)
	if err != nil {
		t.Fatal(err)
	}
	const each = 150
	for range 3 {
		ws := pgtest.Workspace(t, pool)
		for range each {
			id := lemma.NewID()
			if _, err := pool.Exec(t.Context(), `insert into data_sources (workspace_id, id, name, kind, address, dsn)
				values ($1, $2, $3, 'postgres', 'a', $4)`,
				ws, id, id.String(), old.Seal([]byte("dsn"), "data_sources", ws.String(), id.String())); err != nil {
				t.Fatal(err)
			}
		}
	}
	store := audience.New(pool, box, audience.Options{}).Sealed()
	if r, err := box.Inspect(t.Context(), store); err != nil || r.Old != 3*each || r.Rows != 3*each {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := reseal(t.Context(), box, store); err != nil || r.Resealed != 3*each {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := box.Inspect(t.Context(), store); err != nil || r.Current != 3*each {
		t.Errorf("%+v, %v", r, err)
	}
}

// Doctor warns of connections that could be read on the network, and is not red
// because of them.
func TestDoctorWarnsOfConnections(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws := pgtest.Workspace(t, pool)
	for id, tls := range map[string]string{"verified": "verify-full", "intercepted": "require", "open": "disable"} {
		if _, err := pool.Exec(t.Context(), `insert into data_sources (workspace_id, id, name, kind, address, tls, dsn)
			values ($1, $2, $3, 'postgres', 'db.shop.example:5432/shop', $4, '')`,
			ws, lemma.NewID(), id, tls); err != nil {
			t.Fatal(err)
		}
	}
	for id, config := range map[string]string{"clear": `{"host": "mail.shop.example", "tls": "none"}`,
		"secure": `{"host": "mail.shop.example"}`} {
		if _, err := pool.Exec(t.Context(), `insert into providers (workspace_id, id, name, channel, kind, config)
			values ($1, $2, $3, 'email', 'smtp', $4)`,
			ws, lemma.NewID(), id, config); err != nil {
			t.Fatal(err)
		}
	}
	out := mustRun(t, on(pool), "doctor", "--allow-no-fsync")
	for _, want := range []string{`"intercepted"  the server's certificate is not verified`, `"open"         the connection is not encrypted`,
		`"clear"       mail is not encrypted`} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not print %s: %s", want, out)
		}
	}
	if strings.Contains(out, `"verified"`) || strings.Contains(out, `"secure"`) || strings.Contains(out, "RED") {
		t.Errorf("doctor prints too much: %s", out)
	}
}

// Two operators may reseal at once.
func TestTwoReseals(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	keys := []string{secrets.NewKey(), secrets.NewKey()}
	first, err := secrets.ParseKeys(keys[0])
	if err != nil {
		t.Fatal(err)
	}
	ws := pgtest.Workspace(t, pool)
	for range 450 {
		id := lemma.NewID()
		if _, err := pool.Exec(t.Context(), `insert into data_sources (workspace_id, id, name, kind, address, dsn)
				values ($1, $2, $3, 'postgres', 'a', $4)`,
			ws, id, id.String(), first.Seal([]byte("dsn"), "data_sources", ws.String(), id.String())); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 10 {
		box, err := secrets.ParseKeys(keys[(round+1)%2] + "," + keys[round%2])
		if err != nil {
			t.Fatal(err)
		}
		store := audience.New(pool, box, audience.Options{}).Sealed()
		ended := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := reseal(context.Background(), box, store)
				ended <- err
			}()
		}
		for range 2 {
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
		if r, err := box.Inspect(t.Context(), store); err != nil || r.Current != 450 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}
