package webhooks

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/dial"
	"lemma/fence"
	"lemma/page"
	"lemma/pgerr"
)

const endpointColumns = `id, workspace_id, name, url, version, created_at, updated_at`

// Create saves an endpoint and answers with its secret, which is shown here
// and by Rotate alone. Done twice with the same id it makes one, with one secret.
func (w *Webhooks) Create(ctx context.Context, ws uuid.UUID, n NewEndpoint) (Endpoint, string, error) {
	if err := w.checkPatch(Patch{Name: &n.Name, URL: &n.URL}); err != nil {
		return Endpoint{}, "", err
	}
	sealed, err := w.seal(ws, n.ID, keyring{}.rotated(n.ID))
	if err != nil {
		return Endpoint{}, "", err
	}
	err = fence.Transact(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
		insert into webhook_endpoints (workspace_id, id, name, url, secret) values ($1, $2, $3, $4, $5)
		on conflict (workspace_id, id) do nothing`, ws, n.ID, n.Name, n.URL, sealed)
		return err
	})
	if err != nil {
		return Endpoint{}, "", saving.Explain(err, "create webhook endpoint")
	}
	made, ring, err := w.withKeys(ctx, w.pool, ws, n.ID, "")
	if err != nil {
		return Endpoint{}, "", err
	}
	return made, ring.current(), nil
}

// Get reads one endpoint.
func (w *Webhooks) Get(ctx context.Context, ws, id uuid.UUID) (Endpoint, error) {
	rows, _ := w.pool.Query(ctx, `select `+endpointColumns+` from webhook_endpoints where workspace_id = $1 and id = $2`, ws, id)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Endpoint])
	return found, pgerr.Row(err, "webhook endpoint", "get webhook endpoint")
}

var list = page.Named("webhook_endpoints", "", func(e Endpoint) uuid.UUID { return e.ID }, func(e Endpoint) string { return e.Name })

// List reads a page of endpoints.
func (w *Webhooks) List(ctx context.Context, ws uuid.UUID, q page.Query) ([]Endpoint, string, error) {
	return list.Read(ctx, w.pool, q, ws, `select `+endpointColumns+` from webhook_endpoints where workspace_id = $1`, pgx.RowToStructByName[Endpoint])
}

// Update changes an endpoint, if its version is still ifMatch; with nil,
// whatever it is. Messages that wait go to the new address.
func (w *Webhooks) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, p Patch) (Endpoint, error) {
	if err := w.checkPatch(p); err != nil {
		return Endpoint{}, err
	}
	if _, err := w.Get(ctx, ws, id); err != nil {
		return Endpoint{}, err
	}
	rows, _ := w.pool.Query(ctx, `
		update webhook_endpoints set name = coalesce($4, name), url = coalesce($5, url), version = version + 1, updated_at = now()
		where workspace_id = $1 and id = $2 and ($3::int is null or version = $3)
		returning `+endpointColumns, ws, id, ifMatch, p.Name, p.URL)
	changed, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Endpoint])
	if errors.Is(err, pgx.ErrNoRows) {
		return Endpoint{}, &lemma.Error{Kind: lemma.Stale, Message: "somebody has changed the webhook endpoint since it was read: read it again"}
	}
	return changed, saving.Explain(err, "update webhook endpoint")
}

// Delete takes an endpoint away. Messages that wait for it fail.
func (w *Webhooks) Delete(ctx context.Context, ws, id uuid.UUID) error {
	gone, err := w.pool.Exec(ctx, `delete from webhook_endpoints where workspace_id = $1 and id = $2`, ws, id)
	if err == nil && gone.RowsAffected() == 0 {
		return lemma.Missing("webhook endpoint")
	}
	return deleting.Explain(err, "delete webhook endpoint")
}

// Rotate gives an endpoint a new secret. Those before it go on signing too
// for a day, so that the receiver can change over without losing a message.
// Repeated for the same request it makes none, and answers the current one:
// each secret that nobody saw would take the place of one that is in use.
func (w *Webhooks) Rotate(ctx context.Context, ws, id, request uuid.UUID) (made Endpoint, secret string, err error) {
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		now, ring, err := w.withKeys(ctx, tx, ws, id, " for update")
		if err != nil {
			return err
		}
		if ring.madeBy(request) {
			made, secret = now, ring.current()
			return nil
		}
		ring = ring.rotated(request)
		sealed, err := w.seal(ws, id, ring)
		if err != nil {
			return err
		}
		secret = ring.current()
		rows, _ := tx.Query(ctx, `
			update webhook_endpoints set secret = $3, version = version + 1, updated_at = now()
			where workspace_id = $1 and id = $2 returning `+endpointColumns, ws, id, sealed)
		made, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Endpoint])
		return err
	})
	if err != nil {
		return Endpoint{}, "", saving.Explain(err, "rotate webhook secret")
	}
	return made, secret, nil
}

func (w *Webhooks) checkPatch(p Patch) error {
	if p.Name != nil {
		if err := lemma.CheckName(*p.Name); err != nil {
			return err
		}
	}
	if p.URL != nil {
		return w.checkURL(*p.URL)
	}
	return nil
}

// maxURL bounds an endpoint's address, in bytes.
const maxURL = 2000

// checkURL refuses what could not be called in any case. Where a name leads is
// looked at when it is dialled, since that can change.
func (w *Webhooks) checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxURL || !utf8.ValidString(text):
		return badURL("it is longer than %d bytes, or not UTF-8", maxURL)
	case err != nil || u.Host == "" || u.Opaque != "" || u.Hostname() == "":
		return badURL("this is not the address of a web server")
	case u.Scheme != "https" && !(u.Scheme == "http" && w.options.AllowPrivate):
		return badURL("it has to begin with https://")
	case u.User != nil:
		return badURL("it has a user or password; messages are signed instead")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return badURL("it has a fragment, which is never sent")
	}
	if !validPort(u) {
		return badURL("the port is not between 1 and 65535")
	}
	d := dial.Dialer{AllowPrivate: w.options.AllowPrivate}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !d.Allowed(ip) {
		return badURL("the host is an address that may not be called")
	}
	return nil
}

func badURL(format string, args ...any) error { return lemma.Fault("/url", "invalid", format, args...) }

func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && port > 0
}

// What the schema refuses, as the caller reads it.
var (
	saving   = pgerr.Rules{"webhook_endpoints_name": pgerr.NameTaken("webhook endpoint")}
	deleting = pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("a flow uses this webhook endpoint")}
)
