package hooks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/cache"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/redact"
)

const (
	accountAge   = 5 * time.Second // after it a provider is read again
	mostAccounts = 2_000           // in memory, each with up to 200 KiB
	mostReads    = 8               // of providers at a time
)

// account is a provider that receives webhooks.
type account struct {
	workspace uuid.UUID
	kind      string
	channel   lemma.Channel
	version   int
	receiver  sender.Receiver
	secrets   *redact.Secrets // removes them from what the carrier reports
	err       error           // why there is none
	until     time.Time
	read      cache.Moment
}

// accounts are the providers that were read last, with their secrets decrypted.
type accounts struct {
	providers *providers.Providers
	kinds     map[string]sender.Kind
	history   *cache.History
	reads     chan struct{} // a slot for each read: the ids of requests are not trusted

	mu  sync.Mutex
	all map[uuid.UUID]*account
}

func newAccounts(p *providers.Providers, kinds []sender.Kind) *accounts {
	a := &accounts{providers: p, kinds: map[string]sender.Kind{}, reads: make(chan struct{}, mostReads), all: map[uuid.UUID]*account{}}
	for _, k := range kinds {
		a.kinds[k.Name] = k
	}
	return a
}

// find returns the account of a webhook URL.
func (a *accounts) find(ctx context.Context, carrier string, id uuid.UUID) (*account, error) {
	found := a.cached(id)
	if found == nil || time.Now().After(found.until) || found.read != a.history.Now() {
		select {
		case a.reads <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		fresh, err := a.read(ctx, id, found)
		<-a.reads
		if err != nil {
			return nil, err
		}
		a.put(id, fresh)
		found = fresh
	}
	if found.err != nil {
		return nil, found.err
	}
	if found.kind != carrier {
		return nil, ErrUnknown
	}
	return found, nil
}

func (a *accounts) cached(id uuid.UUID) *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[id]
}

// put keeps an account. Above mostAccounts all others are read again.
func (a *accounts) put(id uuid.UUID, found *account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) >= mostAccounts {
		clear(a.all)
	}
	a.all[id] = found
}

// read reads a provider. It keeps the receiver of an unchanged one, which may have
// certificates in memory.
func (a *accounts) read(ctx context.Context, id uuid.UUID, old *account) (*account, error) {
	now := a.history.Now()
	ws, found, err := a.providers.Find(ctx, id)
	until := time.Now().Add(accountAge)
	if lemma.KindOf(err) == lemma.NotFound {
		return &account{err: ErrUnknown, until: until, read: now}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the provider of a webhook: %w", err)
	}
	fresh := &account{workspace: ws, kind: found.Kind, channel: found.Channel, version: found.Version, until: until, read: now}
	if old != nil && old.read == now && old.workspace == ws && old.version == found.Version && old.kind == found.Kind {
		fresh.receiver, fresh.secrets, fresh.err = old.receiver, old.secrets, old.err
		return fresh, nil
	}
	fresh.receiver, fresh.err = a.open(ws, id, found)
	if fresh.receiver != nil {
		fresh.secrets = redact.Of(found.Secrets)
	}
	return fresh, nil
}

func (a *accounts) open(ws, id uuid.UUID, p providers.Account) (sender.Receiver, error) {
	kind, ok := a.kinds[p.Kind]
	if !ok || kind.Receiver == nil {
		return nil, sender.ErrNoReceiver
	}
	receiver, err := kind.Receiver(sender.Account{WorkspaceID: ws, ProviderID: id, Kind: p.Kind, Channel: p.Channel, Config: p.Config,
		Secrets: p.Secrets, Version: p.Version})
	if err != nil && !errors.Is(err, sender.ErrNoReceiver) {
		err = fmt.Errorf("%w: %w", sender.ErrNoReceiver, err)
	}
	return receiver, err
}
