package hooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/cache"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/redact"
)

const (
	accountAge    = 5 * time.Second  // after it a provider is read again
	refusalAge    = time.Second / 10 // after it a provider is read again before a request is refused: it may have been changed
	accountUnused = 10 * time.Minute // after it a provider without webhooks is forgotten
	mostReads     = 8                // of providers at a time

	accountsBytes = 64 << 20
	accountsShare = 16 << 20
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
	readAt    time.Time
	bytes     int // of memory, estimated
}

// accounts are the providers that were called last, with their secrets decrypted. The ids of
// requests are not trusted: those without a provider are kept as of one workspace.
type accounts struct {
	providers *providers.Providers
	kinds     map[string]sender.Kind
	reads     chan struct{} // a slot for each read
	kept      *cache.Cache[uuid.UUID, *account]
}

func newAccounts(p *providers.Providers, kinds []sender.Kind) *accounts {
	a := &accounts{providers: p, kinds: map[string]sender.Kind{}, reads: make(chan struct{}, mostReads),
		kept: cache.New[uuid.UUID, *account](accountsBytes, accountsShare)}
	for _, k := range kinds {
		a.kinds[k.Name] = k
	}
	return a
}

// find returns the account of a webhook URL.
func (a *accounts) find(ctx context.Context, carrier string, id uuid.UUID) (*account, error) {
	found := a.fresh(id, accountAge)
	if found == nil || found.refuses(carrier) != nil {
		var err error
		if found, err = a.refresh(ctx, id, refusalAge); err != nil {
			return nil, err
		}
	}
	return found, found.refuses(carrier)
}

// refuses is why a carrier's requests are refused, whatever they have; nil: they are not.
func (a *account) refuses(carrier string) error {
	if a.err == nil && a.kind != carrier {
		return ErrUnknown
	}
	return a.err
}

// changed returns the account as it is now, if that is another one than was found.
func (a *accounts) changed(ctx context.Context, carrier string, id uuid.UUID, found *account) (now *account, changed bool, err error) {
	now, err = a.refresh(ctx, id, refusalAge)
	if err != nil || now.version == found.version && now.err == nil {
		return found, false, err
	}
	return now, true, now.refuses(carrier)
}

// fresh is the account in memory; nil: it was read longer ago than a time.
func (a *accounts) fresh(id uuid.UUID, most time.Duration) *account {
	found, ok := a.kept.Get(id)
	if !ok || time.Since(found.readAt) > most {
		return nil
	}
	return found
}

// refresh reads an account that was read longer ago than a time, and keeps it. Those that were not called for long are
// forgotten.
func (a *accounts) refresh(ctx context.Context, id uuid.UUID, most time.Duration) (*account, error) {
	select {
	case a.reads <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-a.reads }()
	if found := a.fresh(id, most); found != nil { // another request has read it meanwhile
		return found, nil
	}
	now := a.kept.Now()
	old, _ := a.kept.Get(id)
	fresh, err := a.read(ctx, id, old)
	if err != nil {
		return nil, err
	}
	a.kept.Put(now, fresh.workspace, id, fresh, fresh.bytes)
	a.kept.EvictUnused(func(one *account) bool { return time.Since(one.readAt) > accountUnused })
	return fresh, nil
}

// read reads a provider. It keeps the receiver of an unchanged one, which may have
// certificates in memory.
func (a *accounts) read(ctx context.Context, id uuid.UUID, old *account) (*account, error) {
	readAt := time.Now()
	ws, found, err := a.providers.Find(ctx, id)
	if lemma.KindOf(err) == lemma.NotFound {
		return &account{err: ErrUnknown, readAt: readAt}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the provider of a webhook: %w", err)
	}
	fresh := &account{workspace: ws, kind: found.Kind, channel: found.Channel, version: found.Version, readAt: readAt}
	if old != nil && old.workspace == ws && old.version == found.Version && old.kind == found.Kind {
		fresh.receiver, fresh.secrets, fresh.err, fresh.bytes = old.receiver, old.secrets, old.err, old.bytes
		return fresh, nil
	}
	fresh.receiver, fresh.err = a.open(ws, id, found)
	if fresh.receiver != nil {
		fresh.secrets = redact.Of(found.Secrets)
		fresh.bytes = len(found.Config) + len(found.Secrets) + fresh.secrets.Size() // a receiver may keep both
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
