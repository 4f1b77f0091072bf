package providers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/page"
	"lemma/pgtest"
	"lemma/providers"
)

func TestCreateIsDoneOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := providers.NewProvider{ID: lemma.NewID(), Name: "mail", Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`), RatePerSecond: ptr(14.0)}
	first, err := b.room.Create(t.Context(), b.ws, n)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.room.Create(t.Context(), b.ws, n)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Error(diff)
	}
	if first.Version != 1 || first.Channel != lemma.Email || first.HasSecrets || *first.RatePerSecond != 14 || first.FailedAt != nil {
		t.Errorf("made %+v", first)
	}
}

func TestBadProvidersAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for what, test := range map[string]struct {
		change  func(*providers.NewProvider)
		pointer string
	}{
		"no name":                 {func(n *providers.NewProvider) { n.Name = " " }, "/name"},
		"a name without end":      {func(n *providers.NewProvider) { n.Name = strings.Repeat("x", 201) }, "/name"},
		"a name with a NUL":       {func(n *providers.NewProvider) { n.Name = "a\x00" }, "/name"},
		"a kind that nobody has":  {func(n *providers.NewProvider) { n.Kind = "pigeon" }, "/kind"},
		"a config without host":   {func(n *providers.NewProvider) { n.Config = nil }, "/config/host"},
		"a config that is a list": {func(n *providers.NewProvider) { n.Config = json.RawMessage(`[]`) }, "/config"},
		"a config with a NUL":     {func(n *providers.NewProvider) { n.Config = json.RawMessage(`{"host":"\u0000"}`) }, "/config"},
		"a config without end": {func(n *providers.NewProvider) {
			n.Config = json.RawMessage(`{"host":"` + strings.Repeat("x", 65<<10) + `"}`)
		}, "/config"},
		"secrets that are a text": {func(n *providers.NewProvider) { n.Secrets = json.RawMessage(`"x"`) }, "/secrets"},
		"a rate of nothing":       {func(n *providers.NewProvider) { n.RatePerSecond = ptr(0.0) }, "/rate_per_second"},
		"a rate below nothing":    {func(n *providers.NewProvider) { n.RatePerSecond = ptr(-1.0) }, "/rate_per_second"},
		"a rate beyond belief":    {func(n *providers.NewProvider) { n.RatePerSecond = ptr(1e300) }, "/rate_per_second"},
	} {
		t.Run(what, func(t *testing.T) {
			n := providers.NewProvider{ID: lemma.NewID(), Name: "mail", Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)}
			test.change(&n)
			_, err := b.room.Create(t.Context(), b.ws, n)
			var wrong *lemma.Error
			if !errors.As(err, &wrong) || wrong.Kind != lemma.Invalid || wrong.Fields[0].Pointer != test.pointer {
				t.Errorf("%v, want a fault at %s", err, test.pointer)
			}
			if _, err := b.room.Get(t.Context(), b.ws, n.ID); lemma.KindOf(err) != lemma.NotFound {
				t.Errorf("it was saved all the same: %v", err)
			}
		})
	}
}

func TestNamesAreTakenOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	taken := b.create(t, nil)
	other := b.create(t, nil)
	_, err := b.room.Create(t.Context(), b.ws, providers.NewProvider{ID: lemma.NewID(), Name: taken.Name, Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)})
	_, renamed := b.room.Update(t.Context(), b.ws, other.ID, nil, providers.Patch{Name: &taken.Name})
	for _, err := range []error{err, renamed} {
		var wrong *lemma.Error
		if !errors.As(err, &wrong) || wrong.Kind != lemma.Conflict || wrong.Code != "name_taken" {
			t.Errorf("%v, want name_taken", err)
		}
	}
	elsewhere := pgtest.Workspace(t, b.pool)
	if _, err := b.room.Create(t.Context(), elsewhere, providers.NewProvider{ID: lemma.NewID(), Name: taken.Name, Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)}); err != nil {
		t.Errorf("the name in another workspace: %v", err)
	}
}

// A secret is nowhere but in Account: not in what is shown, not in the table.
func TestSecretsAreWriteOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	listed, _, err := b.room.List(t.Context(), b.ws, page.Query{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	var row string
	if err := b.pool.QueryRow(t.Context(), "select p::text || encode(p.secrets, 'escape') from providers p where workspace_id = $1", b.ws).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%+v %+v", made, listed) + row; strings.Contains(shown, "hunter2") || strings.Contains(row, "password") {
		t.Errorf("the secret shows in %s", shown)
	}
	account, err := b.room.Account(t.Context(), b.ws, made.ID)
	if err != nil || string(account.Secrets) != `{"password":"hunter2"}` || !made.HasSecrets {
		t.Errorf("account %+v, %v", account, err)
	}
}

// Sealed bytes open in their own row alone: whoever can write the table still
// cannot have our server log in with somebody else's password.
func TestASecretMovedToAnotherRowDoesNotOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	victim, thief := b.create(t, nil), b.create(t, nil)
	if _, err := b.pool.Exec(t.Context(), `
		update providers set secrets = (select secrets from providers where workspace_id = $1 and id = $2)
		where workspace_id = $1 and id = $3`, b.ws, victim.ID, thief.ID); err != nil {
		t.Fatal(err)
	}
	if account, err := b.room.Account(t.Context(), b.ws, thief.ID); err == nil {
		t.Errorf("it opened: %s", account.Secrets)
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for what, test := range map[string]struct {
		patch   providers.Patch
		secrets string
		check   func(was, is providers.Provider) bool
	}{
		"a new name keeps all else": {providers.Patch{Name: ptr("new")}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool {
				return is.Name == "new" && string(is.Config) == string(was.Config) && *is.RatePerSecond == 5
			}},
		"a config that moves nothing keeps the secrets": {providers.Patch{Config: json.RawMessage(`{"host": "mail.example.com", "helo": "x"}`)}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool {
				return string(is.Config) == `{"helo": "x", "host": "mail.example.com"}`
			}},
		"another host with the secrets": {providers.Patch{Config: json.RawMessage(`{"host": "other"}`), Secrets: json.RawMessage(`{"password":"new"}`)}, `{"password":"new"}`,
			func(was, is providers.Provider) bool { return string(is.Config) == `{"host": "other"}` }},
		"another host without any": {providers.Patch{Config: json.RawMessage(`{"host": "other"}`), Secrets: json.RawMessage(`null`)}, "",
			func(was, is providers.Provider) bool { return !is.HasSecrets }},
		"new secrets replace the old": {providers.Patch{Secrets: json.RawMessage(`{"password":"new"}`)}, `{"password":"new"}`,
			func(was, is providers.Provider) bool { return is.HasSecrets }},
		"null takes them away": {providers.Patch{Secrets: json.RawMessage(`null`)}, "",
			func(was, is providers.Provider) bool { return !is.HasSecrets }},
		"a new rate": {providers.Patch{RatePerSecond: ptr(0.5)}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool { return *is.RatePerSecond == 0.5 }},
		"no rate any more": {providers.Patch{NoRate: true}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool { return is.RatePerSecond == nil }},
	} {
		t.Run(what, func(t *testing.T) {
			was := b.create(t, func(n *providers.NewProvider) { n.RatePerSecond = ptr(5.0) })
			is, err := b.room.Update(t.Context(), b.ws, was.ID, ptr(1), test.patch)
			if err != nil {
				t.Fatal(err)
			}
			account, err := b.room.Account(t.Context(), b.ws, was.ID)
			if err != nil || string(account.Secrets) != test.secrets || account.Version != 2 {
				t.Errorf("account %+v, %v", account, err)
			}
			if !test.check(was, is) || is.Version != 2 || !is.UpdatedAt.After(was.UpdatedAt) {
				t.Errorf("it was %+v, it is %+v", was, is)
			}
			_, err = b.room.Update(t.Context(), b.ws, was.ID, ptr(1), test.patch)
			if lemma.KindOf(err) != lemma.Stale {
				t.Errorf("the same once more by the old version: %v, want stale", err)
			}
		})
	}
}

// Secrets do not follow a provider to another server: an editor that does not
// know the password could otherwise have it sent to another server.
func TestSecretsDoNotMove(t *testing.T) {
	t.Parallel()
	b := setup(t)
	undecided := b
	undecided.room = providers.New(b.pool, newBox(t), checkKind) // nothing says what moves: any change does
	for what, test := range map[string]struct {
		room    bundle
		config  string
		pointer string
	}{
		"another host":                           {b, `{"host": "evil.example.com"}`, "/config/host"},
		"a member of which nothing is known":     {undecided, `{"host": "mail.example.com", "proxy": "evil"}`, "/config/proxy"},
		"a member that is there no more":         {undecided, `{"host": "mail.example.com"}`, "/config/region"},
		"another host of which nothing is known": {undecided, `{"host": "evil.example.com", "region": 1}`, "/config/host"},
	} {
		t.Run(what, func(t *testing.T) {
			made := test.room.create(t, func(n *providers.NewProvider) {
				if test.room.room == undecided.room && test.pointer != "/config/proxy" {
					n.Config = json.RawMessage(`{"host":"mail.example.com","region":1}`)
				}
			})
			_, err := test.room.room.Update(t.Context(), b.ws, made.ID, nil, providers.Patch{Config: json.RawMessage(test.config)})
			var wrong *lemma.Error
			if !errors.As(err, &wrong) || wrong.Code != "secrets_required" || len(wrong.Fields) != 2 ||
				wrong.Fields[0].Pointer != "/secrets" || wrong.Fields[1].Pointer != test.pointer {
				t.Fatalf("%+v", err)
			}
			if is, err := test.room.room.Get(t.Context(), b.ws, made.ID); err != nil || is.Version != 1 {
				t.Errorf("it changed all the same: %+v, %v", is, err)
			}
		})
	}
}

func TestUpdateIsChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	_, err := b.room.Update(t.Context(), b.ws, made.ID, nil, providers.Patch{Config: json.RawMessage(`{}`)})
	if lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a config without a host: %v", err)
	}
	if is, err := b.room.Get(t.Context(), b.ws, made.ID); err != nil || is.Version != 1 {
		t.Errorf("it changed all the same: %+v, %v", is, err)
	}
}

func TestWhatIsNotThereIsMissing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	elsewhere := pgtest.Workspace(t, b.pool)
	for what, at := range map[string][2]uuid.UUID{"an unknown id": {b.ws, lemma.NewID()}, "another workspace's id": {elsewhere, made.ID}} {
		ws, id := at[0], at[1]
		_, get := b.room.Get(t.Context(), ws, id)
		_, account := b.room.Account(t.Context(), ws, id)
		_, update := b.room.Update(t.Context(), ws, id, nil, providers.Patch{Name: ptr("x")})
		_, _, draw := b.room.Draw(t.Context(), ws, id, 1, 1, 0)
		for verb, err := range map[string]error{"get": get, "account": account, "update": update, "draw": draw, "delete": b.room.Delete(t.Context(), ws, id)} {
			if lemma.KindOf(err) != lemma.NotFound {
				t.Errorf("%s %s: %v", verb, what, err)
			}
		}
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	b := setup(t)
	free, used := b.create(t, nil), b.create(t, nil)
	if err := b.room.Delete(t.Context(), b.ws, free.ID); err != nil {
		t.Error(err)
	}
	if _, err := b.pool.Exec(t.Context(), campaignWith, b.ws, used.ID); err != nil {
		t.Fatal(err)
	}
	var wrong *lemma.Error
	if err := b.room.Delete(t.Context(), b.ws, used.ID); !errors.As(err, &wrong) || wrong.Kind != lemma.Conflict || wrong.Code != "in_use" {
		t.Errorf("deleting what a campaign uses: %v", err)
	}
}

// A delete that had to wait finds the batch that was written meanwhile, by a
// flow that has let go of the provider since.
func TestDeleteSeesWhatWasWrittenWhileItWaited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	holder, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
	if _, err := holder.Exec(t.Context(), `select from providers where workspace_id = $1 and id = $2 for key share`, b.ws, made.ID); err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- b.room.Delete(context.Background(), b.ws, made.ID) }()
	for waits := false; !waits; {
		err := b.pool.QueryRow(t.Context(), `
			select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.pool.Exec(t.Context(), `
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts)
		values ($1, $2, $2, $2, $2, $2, 1, 2)`, b.ws, made.ID); err != nil {
		t.Fatal(err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wrong *lemma.Error
	if err := <-deleted; !errors.As(err, &wrong) || wrong.Code != "in_use" {
		t.Errorf("deleted under a batch that is still to be sent: %v", err)
	}
}

// campaignWith makes a campaign that uses provider $2.
const campaignWith = `
	with s as (insert into data_sources (workspace_id, id, name, kind, address, dsn) values ($1, $2, 's', 'postgres', 'a', '')),
	a as (insert into audiences (workspace_id, id, data_source_id, name, sql, key_column, email_column, columns) values ($1, $2, $2, 'a', 'q', 'k', 'e', '[]')),
	t as (insert into templates (workspace_id, id, name, channel) values ($1, $2, 't', 'email')),
	v as (insert into template_versions (workspace_id, template_id, version, subject, html, text, variables) values ($1, $2, 1, 's', 'h', 't', '{}'))
	insert into campaigns (workspace_id, id, name, audience_id, template_id, template_version, provider_id, from_email)
	values ($1, $2, 'c', $2, $2, 1, $2, 'a@example.com')`

func TestListPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []string
	for range 5 {
		want = append([]string{b.create(t, nil).Name}, want...)
	}
	var got []string
	for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
		found, next, err := b.room.List(t.Context(), b.ws, page.Query{Limit: 2, Cursor: cursor})
		if err != nil || len(found) > 2 {
			t.Fatal(len(found), err)
		}
		for _, p := range found {
			got = append(got, p.Name)
		}
		cursor = next
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, _, err := b.room.List(t.Context(), b.ws, page.Query{Limit: 2, Cursor: "nonsense"})
	if lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a cursor of nonsense: %v", err)
	}
}
