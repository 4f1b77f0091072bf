// Package blobs stores content outside of Postgres in four steps: register, prepare,
// commit, publish. It guarantees (specs/SideEffects.tla):
//
//   - Nothing is read before the transaction that commits it.
//   - What is read is the content of the committed attempt, whole.
//   - One attempt of an owner is committed.
//   - What no row names is deleted in the end, and nothing that is committed is. A process
//     deletes content of its own store only.
//   - What was committed is published, by any process.
//
// Each attempt stores under its own random name, so that a worker that lost its lease
// changes no content but its own. What the content is, is up to the caller.
package blobs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/fence"
)

// Lease is how long an attempt is held after its last renewal.
const Lease = 30 * time.Second

// Deps are what blobs needs.
type Deps struct {
	Pool    *pgxpool.Pool
	Store   Store
	At      string // identifies the store among those of all processes, see Location
	Log     *slog.Logger
	Metrics *Metrics
}

// Blobs stores content. It is safe for concurrent use.
type Blobs struct{ Deps }

// New returns Blobs.
func New(d Deps) *Blobs {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Metrics == nil {
		d.Metrics = NewMetrics(nil)
	}
	return &Blobs{d}
}

// Owner is what content belongs to. An owner of no workspace has the zero workspace.
type Owner struct{ Workspace, ID uuid.UUID }

// Attempt is one attempt to store the content of an owner, with its lease.
type Attempt struct {
	Owner Owner
	ID    uuid.UUID
	Name  string // in the store
	token string
}

// Content describes what an attempt has stored.
type Content struct {
	Bytes  int64
	SHA256 []byte
}

// Register begins an attempt in the caller's transaction, and ends the owner's attempt
// whose lease has expired. The caller has locked the owner. It returns false if
// another attempt holds the lease, or one is committed.
func (b *Blobs) Register(ctx context.Context, tx pgx.Tx, o Owner, folder, extension string) (a Attempt, ok bool, err error) {
	if _, err := tx.Exec(ctx, `
		update blobs set status = 'ended', ended_at = now(), clean_at = now(), leased_by = null, lease_until = null
		where workspace_id = $1 and owner_id = $2 and status = 'registered' and lease_until < now()`, o.Workspace, o.ID); err != nil {
		return a, false, fmt.Errorf("end expired attempt of %s: %w", o.ID, err)
	}
	a = Attempt{Owner: o, ID: lemma.NewID(), token: rand.Text()}
	a.Name = folder + "/" + a.ID.String() + "-" + rand.Text() + extension
	tag, err := tx.Exec(ctx, `
		insert into blobs (workspace_id, id, owner_id, store, name, leased_by, lease_until)
		select $1, $2, $3, $7, $4, $5, now() + $6
		where not exists (select from blobs where workspace_id = $1 and owner_id = $3 and status in ('registered', 'committed', 'published'))`,
		o.Workspace, a.ID, o.ID, a.Name, a.token, Lease, b.At)
	return a, tag.RowsAffected() == 1, lemma.Wrap(err, "register attempt of %s", o.ID)
}

// Hold renews the lease until the returned context ends, which it does when the lease
// is lost.
func (b *Blobs) Hold(ctx context.Context, a Attempt) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go fence.Renew(ctx, b.Pool, Lease, stop, func(err error) { b.Log.WarnContext(ctx, "renew the lease of a blob", "error", err) }, `
		update blobs set lease_until = now() + $4
		where workspace_id = $1 and id = $2 and leased_by = $3 and status = 'registered' and lease_until >= now()`,
		a.Owner.Workspace, a.ID, a.token, Lease)
	return ctx, stop
}

// Held reports in the caller's transaction whether the attempt holds its lease, which it
// keeps until the transaction ends.
func (b *Blobs) Held(ctx context.Context, tx pgx.Tx, a Attempt) (bool, error) {
	tag, err := tx.Exec(ctx, `
		select from blobs where workspace_id = $1 and id = $2 and leased_by = $3 and status = 'registered' and lease_until >= now()
		for share`, a.Owner.Workspace, a.ID, a.token)
	return err == nil && tag.RowsAffected() == 1, err
}

// Commit commits an attempt in the caller's transaction. It returns false if the attempt
// has lost its lease, or another one is committed.
func (b *Blobs) Commit(ctx context.Context, tx pgx.Tx, a Attempt, c Content) (bool, error) {
	tag, err := tx.Exec(ctx, `
		update blobs set status = 'committed', bytes = $4, sha256 = $5, leased_by = null, lease_until = null
		where workspace_id = $1 and id = $2 and leased_by = $3 and status = 'registered' and lease_until >= now()
		  and not exists (select from blobs o where o.workspace_id = $1 and o.owner_id = $6 and o.status in ('committed', 'published'))`,
		a.Owner.Workspace, a.ID, a.token, c.Bytes, c.SHA256, a.Owner.ID)
	return tag.RowsAffected() == 1, lemma.Wrap(err, "commit blob %s", a.ID)
}

// Lost is the error for committed content that the store does not have whole.
type Lost struct {
	ID    uuid.UUID // of the attempt
	cause error
}

func (l *Lost) Error() string {
	return fmt.Sprintf("the store has lost the content of %s: %v", l.ID, l.cause)
}
func (l *Lost) Unwrap() error { return l.cause }

// Publish publishes the committed content of an owner, which the store has been checked to
// have whole: else the error is a Lost. Any process may do so. first runs in the transaction
// that publishes, before it locks the attempt. Publish returns false if nothing is committed
// any more, or it is published already.
func (b *Blobs) Publish(ctx context.Context, o Owner, first func(pgx.Tx) error) (published bool, err error) {
	found, err := b.find(ctx, o, "committed")
	if err != nil || found.ID == uuid.Nil {
		return false, err
	}
	size, err := b.Store.Size(ctx, found.Name)
	if err == nil && size != found.Bytes {
		err = &Lost{found.ID, fmt.Errorf("it has %d bytes instead of %d", size, found.Bytes)}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &Lost{found.ID, err}
	}
	if err != nil {
		return false, fmt.Errorf("check stored content of %s: %w", o.ID, err)
	}
	err = pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		if err := first(tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update blobs set status = 'published' where workspace_id = $1 and id = $2 and status = 'committed'`,
			o.Workspace, found.ID)
		if err == nil && tag.RowsAffected() == 0 {
			err = errGone
		}
		return err
	})
	if errors.Is(err, errGone) {
		return false, nil
	}
	return err == nil, lemma.Wrap(err, "publish blob %s", found.ID)
}

// errGone rolls a transaction back whose attempt another one has ended or published.
var errGone = errors.New("the attempt is not committed any more")

// Drop ends all attempts of an owner in the caller's transaction, so that Clean deletes
// their content: the owner is cancelled or deleted.
func (b *Blobs) Drop(ctx context.Context, tx pgx.Tx, o Owner) error {
	_, err := tx.Exec(ctx, `
		update blobs set status = 'ended', ended_at = now(), clean_at = now(), leased_by = null, lease_until = null
		where workspace_id = $1 and owner_id = $2 and status <> 'ended'`, o.Workspace, o.ID)
	return lemma.Wrap(err, "drop blobs of %s", o.ID)
}

// Written notes how many bytes an attempt has stored, in the caller's transaction.
func (b *Blobs) Written(ctx context.Context, tx pgx.Tx, a Attempt, bytes int64) error {
	_, err := tx.Exec(ctx, `
		update blobs set bytes = $4 where workspace_id = $1 and id = $2 and leased_by = $3 and status = 'registered'`,
		a.Owner.Workspace, a.ID, a.token, bytes)
	return lemma.Wrap(err, "note the bytes of attempt %s", a.ID)
}

// End ends an attempt that its worker gives up, in the caller's transaction. It returns
// false if the attempt has lost its lease.
func (b *Blobs) End(ctx context.Context, tx pgx.Tx, a Attempt) (bool, error) {
	tag, err := tx.Exec(ctx, `
		update blobs set status = 'ended', ended_at = now(), clean_at = now(), leased_by = null, lease_until = null
		where workspace_id = $1 and id = $2 and leased_by = $3 and status = 'registered'`, a.Owner.Workspace, a.ID, a.token)
	return tag.RowsAffected() == 1, lemma.Wrap(err, "end attempt %s", a.ID)
}

// Blob is stored content.
type Blob struct {
	ID     uuid.UUID
	Store  string // which store has it, as Deps.At
	Name   string
	Bytes  int64
	SHA256 []byte
}

// Checksum is the SHA-256 in hexadecimal.
func (b Blob) Checksum() string { return hex.EncodeToString(b.SHA256) }

// Published returns the published content of an owner. It may be in another store.
func (b *Blobs) Published(ctx context.Context, o Owner) (Blob, error) {
	found, err := b.find(ctx, o, "published")
	if err == nil && found.ID == uuid.Nil {
		err = lemma.Missing("file")
	}
	return found, err
}

// find returns the content of an owner with a status, a zero Blob if there is none.
func (b *Blobs) find(ctx context.Context, o Owner, status string) (found Blob, err error) {
	err = b.Pool.QueryRow(ctx, `select id, store, name, bytes, sha256 from blobs where workspace_id = $1 and owner_id = $2 and status = $3
		and status in ('committed', 'published')`, o.Workspace, o.ID, status).
		Scan(&found.ID, &found.Store, &found.Name, &found.Bytes, &found.SHA256)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Blob{}, fmt.Errorf("find %s blob of %s: %w", status, o.ID, err)
	}
	return found, nil
}
