package webhooks

import (
	"context"
	"errors"
	"fmt"
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
	"lemma/secrets"
)

const endpointColumns = `id, workspace_id, name, url, subscriptions, sequence, status, status_reason, disabled_at,
	version, created_at, updated_at`

// Create saves an endpoint and returns its secret, which only Create and Rotate
// return. Repeated with the same id, it returns the same endpoint and secret.
func (w *Webhooks) Create(ctx context.Context, ws uuid.UUID, n NewEndpoint) (Endpoint, string, error) {
	if err := w.checkPatch(Patch{Name: &n.Name, URL: &n.URL, Subscriptions: &n.Subscriptions}); err != nil {
		return Endpoint{}, "", err
	}
	sealed, err := w.seal(ws, n.ID, keyring{}.rotated(n.ID))
	if err != nil {
		return Endpoint{}, "", err
	}
	made := false
	err = fence.Transact(ctx, w.pool, func(tx pgx.Tx) error {
		if err := insert(ctx, tx, ws, n, sealed); err != nil {
			return err
		}
		made = true
		return writeSubscriptions(ctx, tx, ws, n.ID, n.Subscriptions)
	})
	if err != nil {
		return Endpoint{}, "", saving.Explain(err, "create webhook endpoint")
	}
	if len(n.Subscriptions) > 0 {
		if err := w.awaitOlder(ctx, ws); err != nil {
			return Endpoint{}, "", errors.Join(err, w.undo(ctx, ws, n.ID, made))
		}
	}
	found, keys, err := w.withKeys(ctx, w.pool, ws, n.ID, "")
	if err != nil {
		return Endpoint{}, "", err
	}
	return found, keys.current(), nil
}

// undo deletes an endpoint that this request has made and cannot answer, so that a request
// that is repeated makes no second one.
func (w *Webhooks) undo(ctx context.Context, ws, id uuid.UUID, made bool) error {
	if !made {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.settling)
	defer cancel()
	_, err := fence.Exec(ctx, w.pool, `delete from webhook_endpoints where workspace_id = $1 and id = $2`, ws, id)
	return lemma.Wrap(err, "delete webhook endpoint %s, whose creation failed", id)
}

// MaxEndpoints is how many endpoints a workspace has at most: each event is written for
// each of them that subscribes.
const MaxEndpoints = 100

// lockWorkspace makes changes of a workspace's endpoints count each other.
func lockWorkspace(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	_, err := tx.Exec(ctx, `select from workspaces where id = $1 for no key update`, ws)
	return lemma.Wrap(err, "lock workspace")
}

// insert inserts an endpoint. It returns fence.ErrUnchanged if it exists.
func insert(ctx context.Context, tx pgx.Tx, ws uuid.UUID, n NewEndpoint, secret []byte) error {
	if err := lockWorkspace(ctx, tx, ws); err != nil {
		return err
	}
	var made, full bool
	err := tx.QueryRow(ctx, `
		with others as (select count(*) as n from webhook_endpoints where workspace_id = $1 and id <> $2), made as (
			insert into webhook_endpoints (workspace_id, id, name, url, secret, subscriptions)
			select $1, $2, $3, $4, $5, $6 from others where n < $7
			on conflict (workspace_id, id) do nothing
			returning id
		)
		select exists (select from made), n >= $7 from others`,
		ws, n.ID, n.Name, n.URL, secret, append([]Subscription{}, n.Subscriptions...), MaxEndpoints).Scan(&made, &full)
	switch {
	case err != nil:
		return err
	case full:
		return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_endpoints",
			Message: fmt.Sprintf("the workspace has %d webhook endpoints; delete one", MaxEndpoints)}
	case !made:
		return fence.ErrUnchanged
	}
	return nil
}

// Get reads one endpoint.
func (w *Webhooks) Get(ctx context.Context, ws, id uuid.UUID) (Endpoint, error) {
	rows, _ := w.pool.Query(ctx, `select `+endpointColumns+` from webhook_endpoints where workspace_id = $1 and id = $2`, ws, id)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Endpoint])
	return found, pgerr.Row(err, "webhook endpoint", "get webhook endpoint")
}

var list = page.Named("webhook_endpoints", "", func(e Endpoint) uuid.UUID { return e.ID }, func(e Endpoint) string { return e.Name }).
	WithStatus("status")

// List reads a page of endpoints.
func (w *Webhooks) List(ctx context.Context, ws uuid.UUID, q page.Query) ([]Endpoint, string, error) {
	return list.Read(ctx, w.pool, q, ws,
		`select `+endpointColumns+` from webhook_endpoints where workspace_id = $1`, pgx.RowToStructByName[Endpoint])
}

// Update changes an endpoint if its version is ifMatch; nil matches every version.
// Pending messages go to the new address.
func (w *Webhooks) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, p Patch) (Endpoint, error) {
	if err := w.checkPatch(p); err != nil {
		return Endpoint{}, err
	}
	if _, err := w.Get(ctx, ws, id); err != nil {
		return Endpoint{}, err
	}
	var changed Endpoint
	err := fence.Transact(ctx, w.pool, func(tx pgx.Tx) (err error) {
		if p.Subscriptions != nil {
			if err := lockWorkspace(ctx, tx, ws); err != nil {
				return err
			}
		}
		changed, err = patch(ctx, tx, ws, id, ifMatch, p)
		if err != nil || p.Subscriptions == nil {
			return err
		}
		return writeSubscriptions(ctx, tx, ws, id, *p.Subscriptions)
	})
	if err == nil && p.Subscriptions != nil {
		err = w.awaitOlder(ctx, ws)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return Endpoint{}, lemma.Changed("webhook endpoint")
	}
	return changed, saving.Explain(err, "update webhook endpoint")
}

// patch updates the row of an endpoint. Failures from before it was enabled do not count
// any more.
func patch(ctx context.Context, tx pgx.Tx, ws, id uuid.UUID, ifMatch *int, p Patch) (Endpoint, error) {
	rows, _ := tx.Query(ctx, `
		update webhook_endpoints set name = coalesce($4, name), url = coalesce($5, url),
			subscriptions = coalesce($6, subscriptions), status = coalesce($7, status),
			status_reason = case coalesce($7, status) when 'disabled' then coalesce(status_reason, '`+DisabledByRequest+`') end,
			disabled_at = case coalesce($7, status) when 'disabled' then coalesce(disabled_at, now()) end,
			enabled_at = case when $7 = 'enabled' and status = 'disabled' then now() else enabled_at end,
			failing_since = case when $7 = 'enabled' and status = 'disabled' then null else failing_since end,
			version = version + 1, updated_at = now()
		where workspace_id = $1 and id = $2 and ($3::int is null or version = $3)
		returning `+endpointColumns, ws, id, ifMatch, p.Name, p.URL, p.Subscriptions, p.Status)
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Endpoint])
}

// Delete deletes an endpoint. Its pending messages fail.
func (w *Webhooks) Delete(ctx context.Context, ws, id uuid.UUID) error {
	gone, err := fence.Exec(ctx, w.pool, `delete from webhook_endpoints where workspace_id = $1 and id = $2`, ws, id)
	if err == nil && gone.RowsAffected() == 0 {
		return lemma.Missing("webhook endpoint")
	}
	return deleting.Explain(err, "delete webhook endpoint")
}

// Rotate gives an endpoint a new secret. The earlier ones sign too for a day, so
// that the receiver can switch without losing a message. Repeated for the same
// request, it returns the current secret: a further one would displace a secret
// that is in use.
func (w *Webhooks) Rotate(ctx context.Context, ws, id, request uuid.UUID) (made Endpoint, secret string, err error) {
	err = fence.Transact(ctx, w.pool, func(tx pgx.Tx) error {
		now, keys, err := w.withKeys(ctx, tx, ws, id, " for update")
		if err != nil && !errors.Is(err, secrets.ErrSealed) { // secrets whose key is lost are replaced
			return err
		}
		if keys.madeBy(request) {
			made, secret = now, keys.current()
			return fence.ErrUnchanged
		}
		keys = keys.rotated(request)
		sealed, err := w.seal(ws, id, keys)
		if err != nil {
			return err
		}
		secret = keys.current()
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
		if err := w.checkURL(*p.URL); err != nil {
			return err
		}
	}
	if p.Status != nil && *p.Status != Enabled && *p.Status != Disabled {
		return lemma.Fault("/status", "invalid", "must be enabled or disabled")
	}
	if p.Subscriptions != nil {
		return checkSubscriptions(*p.Subscriptions)
	}
	return nil
}

// maxURL bounds an endpoint's URL, in bytes.
const maxURL = 2000

// checkURL refuses a URL that can never be called. The address that a name resolves
// to is checked when it is dialled, since it can change.
func (w *Webhooks) checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxURL || !utf8.ValidString(text):
		return badURL("must be UTF-8 of at most %d bytes", maxURL)
	case err != nil || u.Host == "" || u.Opaque != "" || u.Hostname() == "":
		return badURL("must be an absolute URL with a host")
	case u.Scheme != "https" && (u.Scheme != "http" || !w.options.AllowPrivate):
		return badURL("must begin with https://")
	case u.User != nil:
		return badURL("must not contain a user or password; messages are signed instead")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return badURL("must not contain a fragment, which is never sent")
	}
	if !validPort(u) {
		return badURL("must have a port between 1 and 65535")
	}
	d := dial.Dialer{AllowPrivate: w.options.AllowPrivate}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !d.Allowed(ip) {
		return badURL("must not have a host that is a private or special address")
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

// Messages for constraints of the schema.
var (
	saving   = pgerr.Rules{"webhook_endpoints_name": pgerr.NameTaken("webhook endpoint")}
	deleting = pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("a flow uses this webhook endpoint")}
)
