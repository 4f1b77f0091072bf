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
	"lemma/secrets"
)

func TestCreatingOneIDTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := providers.NewProvider{ID: lemma.NewID(), Name: "mail", Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`),
		RatePerSecond: new(14.0)}
	first, err := b.accounts.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	again, err := b.accounts.Create(t.Context(), b.Workspace, n)
	b.Must(err)
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
		"a name that is too long": {func(n *providers.NewProvider) { n.Name = strings.Repeat("x", 201) }, "/name"},
		"a name with a NUL":       {func(n *providers.NewProvider) { n.Name = "a\x00" }, "/name"},
		"an unknown kind":         {func(n *providers.NewProvider) { n.Kind = "pigeon" }, "/kind"},
		"a config without host":   {func(n *providers.NewProvider) { n.Config = nil }, "/config/host"},
		"a config that is a list": {func(n *providers.NewProvider) { n.Config = json.RawMessage(`[]`) }, "/config"},
		"a config with a NUL":     {func(n *providers.NewProvider) { n.Config = json.RawMessage(`{"host":"\u0000"}`) }, "/config"},
		"a config that is too large": {func(n *providers.NewProvider) {
			n.Config = json.RawMessage(`{"host":"` + strings.Repeat("x", 65<<10) + `"}`)
		}, "/config"},
		"secrets that are a text": {func(n *providers.NewProvider) { n.Secrets = json.RawMessage(`"x"`) }, "/secrets"},
		"a rate of zero":          {func(n *providers.NewProvider) { n.RatePerSecond = new(0.0) }, "/rate_per_second"},
		"a negative rate":         {func(n *providers.NewProvider) { n.RatePerSecond = new(-1.0) }, "/rate_per_second"},
		"a rate that is too high": {func(n *providers.NewProvider) { n.RatePerSecond = new(1e300) }, "/rate_per_second"},
	} {
		t.Run(what, func(t *testing.T) {
			n := providers.NewProvider{ID: lemma.NewID(), Name: "mail", Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)}
			test.change(&n)
			_, err := b.accounts.Create(t.Context(), b.Workspace, n)
			var wrong *lemma.Error
			if !errors.As(err, &wrong) || wrong.Kind != lemma.Invalid || wrong.Fields[0].Pointer != test.pointer {
				t.Errorf("%v, want a fault at %s", err, test.pointer)
			}
			if _, err := b.accounts.Get(t.Context(), b.Workspace, n.ID); lemma.KindOf(err) != lemma.NotFound {
				t.Errorf("it was saved: %v", err)
			}
		})
	}
}

// A backslash before u0000 is no NUL.
func TestSecretsWithABackslash(t *testing.T) {
	b := setup(t)
	n := providers.NewProvider{ID: lemma.NewID(), Name: "mail", Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`),
		Secrets: json.RawMessage(`{"password":"\\u0000"}`)}
	if _, err := b.accounts.Create(t.Context(), b.Workspace, n); err != nil {
		t.Error(err)
	}
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	b := setup(t)
	taken := b.create(t, nil)
	other := b.create(t, nil)
	_, err := b.accounts.Create(t.Context(), b.Workspace,
		providers.NewProvider{ID: lemma.NewID(), Name: taken.Name, Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)})
	_, renamed := b.accounts.Update(t.Context(), b.Workspace, other.ID, nil, providers.Patch{Name: &taken.Name})
	for _, err := range []error{err, renamed} {
		var wrong *lemma.Error
		if !errors.As(err, &wrong) || wrong.Kind != lemma.Conflict || wrong.Code != "name_taken" {
			t.Errorf("%v, want name_taken", err)
		}
	}
	elsewhere := pgtest.Workspace(t, b.Pool)
	if _, err := b.accounts.Create(t.Context(), elsewhere,
		providers.NewProvider{ID: lemma.NewID(), Name: taken.Name, Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)}); err != nil {
		t.Errorf("the name in another workspace: %v", err)
	}
}

// A secret is only in Account: not in Provider, and not in the table.
func TestSecretsAreWriteOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	listed, _, err := b.accounts.List(t.Context(), b.Workspace, page.Query{Limit: 10})
	b.Must(err)
	row := pgtest.One[string](b.T, b.Pool, "select p::text || encode(p.secrets, 'escape') from providers p where workspace_id = $1",
		b.Workspace)
	if shown := fmt.Sprintf("%+v %+v", made, listed) + row; strings.Contains(shown, "hunter2") || strings.Contains(row, "password") {
		t.Errorf("the secret shows in %s", shown)
	}
	account, err := b.accounts.Account(t.Context(), b.Workspace, made.ID)
	if err != nil || string(account.Secrets) != `{"password":"hunter2"}` || !made.HasSecrets {
		t.Errorf("account %+v, %v", account, err)
	}
}

// Encrypted secrets open only in their own row, so that a writer of the table
// cannot use the password of another provider.
func TestASecretMovedToAnotherRowDoesNotOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	victim, thief := b.create(t, nil), b.create(t, nil)
	b.Exec(`
		update providers set secrets = (select secrets from providers where workspace_id = $1 and id = $2)
		where workspace_id = $1 and id = $3`, b.Workspace, victim.ID, thief.ID)
	if account, err := b.accounts.Account(t.Context(), b.Workspace, thief.ID); err == nil {
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
		"a new name keeps all else": {providers.Patch{Name: new("new")}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool {
				return is.Name == "new" && string(is.Config) == string(was.Config) && *is.RatePerSecond == 5
			}},
		"a config with the same destination keeps the secrets": {
			providers.Patch{Config: json.RawMessage(`{"host": "mail.example.com", "helo": "x"}`)}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool {
				return string(is.Config) == `{"helo": "x", "host": "mail.example.com"}`
			}},
		"another host with the secrets": {providers.Patch{Config: json.RawMessage(`{"host": "other"}`),
			Secrets: json.RawMessage(`{"password":"new"}`)}, `{"password":"new"}`,
			func(was, is providers.Provider) bool { return string(is.Config) == `{"host": "other"}` }},
		"another host without any": {providers.Patch{Config: json.RawMessage(`{"host": "other"}`), Secrets: json.RawMessage(`null`)}, "",
			func(was, is providers.Provider) bool { return !is.HasSecrets }},
		"new secrets replace the old": {providers.Patch{Secrets: json.RawMessage(`{"password":"new"}`)}, `{"password":"new"}`,
			func(was, is providers.Provider) bool { return is.HasSecrets }},
		"null removes them": {providers.Patch{Secrets: json.RawMessage(`null`)}, "",
			func(was, is providers.Provider) bool { return !is.HasSecrets }},
		"a new rate": {providers.Patch{RatePerSecond: new(0.5)}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool { return *is.RatePerSecond == 0.5 }},
		"a rate that is removed": {providers.Patch{NoRate: true}, `{"password":"hunter2"}`,
			func(was, is providers.Provider) bool { return is.RatePerSecond == nil }},
	} {
		t.Run(what, func(t *testing.T) {
			was := b.create(t, func(n *providers.NewProvider) { n.RatePerSecond = new(5.0) })
			is, err := b.accounts.Update(t.Context(), b.Workspace, was.ID, new(1), test.patch)
			if err != nil {
				t.Fatal(err)
			}
			account, err := b.accounts.Account(t.Context(), b.Workspace, was.ID)
			if err != nil || string(account.Secrets) != test.secrets || account.Version != 2 {
				t.Errorf("account %+v, %v", account, err)
			}
			if !test.check(was, is) || is.Version != 2 || !is.UpdatedAt.After(was.UpdatedAt) {
				t.Errorf("it was %+v, it is %+v", was, is)
			}
			_, err = b.accounts.Update(t.Context(), b.Workspace, was.ID, new(1), test.patch)
			if lemma.KindOf(err) != lemma.Stale {
				t.Errorf("the same update of the old version: %v, want stale", err)
			}
		})
	}
}

// Secrets do not follow a provider to another server: otherwise an editor that does
// not know the password could send it there.
func TestSecretsDoNotMove(t *testing.T) {
	t.Parallel()
	b := setup(t)
	strict := b
	strict.accounts = providers.New(b.Pool, pgtest.Box(t), checkKind) // without OnMove: any change counts
	for what, test := range map[string]struct {
		bundle  bundle
		config  string
		pointer string
	}{
		"another host":                     {b, `{"host": "evil.example.com"}`, "/config/host"},
		"a new member, without OnMove":     {strict, `{"host": "mail.example.com", "proxy": "evil"}`, "/config/proxy"},
		"a removed member, without OnMove": {strict, `{"host": "mail.example.com"}`, "/config/region"},
		"another host, without OnMove":     {strict, `{"host": "evil.example.com", "region": 1}`, "/config/host"},
	} {
		t.Run(what, func(t *testing.T) {
			made := test.bundle.create(t, func(n *providers.NewProvider) {
				if test.bundle.accounts == strict.accounts && test.pointer != "/config/proxy" {
					n.Config = json.RawMessage(`{"host":"mail.example.com","region":1}`)
				}
			})
			_, err := test.bundle.accounts.Update(t.Context(), b.Workspace, made.ID, nil, providers.Patch{Config: json.RawMessage(test.config)})
			var wrong *lemma.Error
			if !errors.As(err, &wrong) || wrong.Code != "secrets_required" || len(wrong.Fields) != 2 ||
				wrong.Fields[0].Pointer != "/secrets" || wrong.Fields[1].Pointer != test.pointer {
				t.Fatalf("%+v", err)
			}
			if is, err := test.bundle.accounts.Get(t.Context(), b.Workspace, made.ID); err != nil || is.Version != 1 {
				t.Errorf("it changed: %+v, %v", is, err)
			}
		})
	}
}

func TestUpdateIsChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	_, err := b.accounts.Update(t.Context(), b.Workspace, made.ID, nil, providers.Patch{Config: json.RawMessage(`{}`)})
	if lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a config without a host: %v", err)
	}
	if is, err := b.accounts.Get(t.Context(), b.Workspace, made.ID); err != nil || is.Version != 1 {
		t.Errorf("it changed: %+v, %v", is, err)
	}
}

func TestUnknownIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	elsewhere := pgtest.Workspace(t, b.Pool)
	for what, at := range map[string][2]uuid.UUID{"an unknown id": {b.Workspace, lemma.NewID()}, "another workspace's id": {elsewhere,
		made.ID}} {
		ws, id := at[0], at[1]
		_, get := b.accounts.Get(t.Context(), ws, id)
		_, account := b.accounts.Account(t.Context(), ws, id)
		_, update := b.accounts.Update(t.Context(), ws, id, nil, providers.Patch{Name: new("x")})
		_, _, acquire := b.accounts.Acquire(t.Context(), ws, id, 1, 1, 0)
		for verb, err := range map[string]error{"get": get, "account": account, "update": update, "acquire": acquire,
			"delete": b.accounts.Delete(t.Context(), ws, id)} {
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
	if err := b.accounts.Delete(t.Context(), b.Workspace, free.ID); err != nil {
		t.Error(err)
	}
	b.Exec(campaignWith, b.Workspace, used.ID)
	var wrong *lemma.Error
	if err := b.accounts.Delete(t.Context(), b.Workspace, used.ID); !errors.As(err, &wrong) || wrong.Kind != lemma.Conflict ||
		wrong.Code != "in_use" {
		t.Errorf("deleting what a campaign uses: %v", err)
	}
}

// A delete that had to wait finds the batch that was written meanwhile, by a flow
// that has been archived since.
func TestDeleteSeesWhatWasWrittenWhileItWaited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	holder, err := b.Pool.Begin(t.Context())
	b.Must(err)
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
	if _, err := holder.Exec(t.Context(), `select from providers where workspace_id = $1 and id = $2 for key share`, b.Workspace,
		made.ID); err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- b.accounts.Delete(context.Background(), b.Workspace, made.ID) }()
	b.WaitForLocks(1)
	b.Exec(`
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts)
		values ($1, $2, $2, $2, $2, $2, 1, 2)`, b.Workspace, made.ID)
	b.Must(holder.Rollback(t.Context()))
	var wrong *lemma.Error
	if err := <-deleted; !errors.As(err, &wrong) || wrong.Code != "in_use" {
		t.Errorf("deleted although a batch uses it: %v", err)
	}
}

// campaignWith makes a campaign that uses provider $2.
const campaignWith = `
	with s as (insert into data_sources (workspace_id, id, name, kind, address, dsn) values ($1, $2, 's', 'postgres', 'a', '')),
	a as (insert into audiences (workspace_id, id, data_source_id, name, sql, key_column, email_column, columns)
	values ($1, $2, $2, 'a', 'q', 'k', 'e', '[]')),
	t as (insert into templates (workspace_id, id, name, channel) values ($1, $2, 't', 'email')),
	v as (insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
	values ($1, $2, 1, 's', 'h', 't', '{}'))
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
	for _, p := range pgtest.Pages(t, 2, func(cursor string) ([]providers.Provider, string, error) {
		return b.accounts.List(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: cursor})
	}) {
		got = append(got, p.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, _, err := b.accounts.List(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: "nonsense"})
	if lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("an invalid cursor: %v", err)
	}
}

// Secrets whose key is lost can be replaced, and only replaced.
func TestLostSecretsAreReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t, nil)
	after := providers.New(b.Pool, pgtest.Box(t), checkKind) // with another key
	after.OnMove(moves)
	_, err := after.Update(t.Context(), b.Workspace, made.ID, nil, providers.Patch{Name: new("other")})
	if !errors.Is(err, secrets.ErrSealed) {
		t.Errorf("a change that keeps secrets which cannot be read: %v", err)
	}
	_, err = after.Update(t.Context(), b.Workspace, made.ID, nil, providers.Patch{Secrets: json.RawMessage(`{"password":"hunter3"}`)})
	b.Must(err)
	account, err := after.Account(t.Context(), b.Workspace, made.ID)
	if err != nil || string(account.Secrets) != `{"password":"hunter3"}` {
		t.Errorf("%s, %v", account.Secrets, err)
	}
}
