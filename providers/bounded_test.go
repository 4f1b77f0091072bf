package providers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"lemma"
	"lemma/pgtest"
	"lemma/providers"
)

// A workspace has at most MaxProviders providers, also when some are created together. One that
// exists is created again.
func TestProvidersOfAWorkspaceAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := providers.NewProvider{ID: lemma.NewID(), Name: "mail", Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)}
	_, err := b.accounts.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	b.Exec(`insert into providers (workspace_id, id, name, channel, kind, config)
		select workspace_id, gen_random_uuid(), 'p' || i, channel, kind, config from providers, generate_series(3, $1::int) i`,
		providers.MaxProviders)
	first, err := b.Pool.Begin(t.Context()) // like a creation that has not committed yet
	b.Must(err)
	defer func() { _ = first.Rollback(context.Background()) }()
	if _, err := first.Exec(t.Context(), `select from workspaces where id = $1 for no key update`, b.Workspace); err != nil {
		t.Fatal(err)
	}
	var together sync.WaitGroup
	faults := make([]error, 4)
	for i := range faults {
		together.Go(func() {
			_, faults[i] = b.accounts.Create(t.Context(), b.Workspace, providers.NewProvider{ID: lemma.NewID(), Name: fmt.Sprint("new ", i),
				Kind: "smtp", Config: json.RawMessage(`{"host":"h"}`)})
		})
	}
	b.WaitForLocks(len(faults))
	b.Must(first.Rollback(t.Context()))
	together.Wait()
	refused := 0
	for _, err := range faults {
		var e *lemma.Error
		switch {
		case errors.As(err, &e) && e.Code == "too_many_providers" && e.Kind == lemma.Conflict:
			refused++
		case err != nil:
			t.Error(err)
		}
	}
	if refused != len(faults)-1 {
		t.Errorf("%d were refused: %v", refused, faults)
	}
	b.WantCount(providers.MaxProviders, `select count(*) from providers`)
	if _, err := b.accounts.Create(t.Context(), b.Workspace, n); err != nil {
		t.Error(err)
	}
	b.Workspace = pgtest.Workspace(t, b.Pool)
	b.create(t, nil)
}
