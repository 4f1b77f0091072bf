package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/fence"
)

// mostHosts is how many hosts a workspace has had in its tracking URL.
const mostHosts = 100

// claimHost makes the host of a tracking URL one of the workspace, also later on: its links lead there.
// The host of the public URL is of all.
func claimHost(ctx context.Context, tx pgx.Tx, ws uuid.UUID, trackingURL string) error {
	to, err := url.Parse(trackingURL)
	if err != nil || to.Host == "" {
		return nil //nolint:nilerr // empty: the public URL
	}
	name := hostOf(to)
	rows, _ := tx.Query(ctx, `select value from settings where name = 'LEMMA_PUBLIC_URL'`)
	public, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return lemma.Wrap(err, "read the public URL")
	}
	for _, one := range public {
		if u, err := url.Parse(one); err == nil && hostOf(u) == name {
			return nil
		}
	}
	tag, err := tx.Exec(ctx, `
		insert into tracking_hosts (host, workspace_id) values ($1, $2)
		on conflict (host) do update set workspace_id = excluded.workspace_id where tracking_hosts.workspace_id = excluded.workspace_id`,
		name, ws)
	if err != nil {
		return lemma.Wrap(err, "claim a host")
	}
	if tag.RowsAffected() == 0 {
		return &lemma.Error{Kind: lemma.Conflict, Code: "tracking_url_taken",
			Message: "the host of tracking_url belongs to another workspace, under whose name no other makes links; take a name of your own"}
	}
	var count int
	if err := tx.QueryRow(ctx, `select count(*) from tracking_hosts where workspace_id = $1`, ws).Scan(&count); err != nil {
		return lemma.Wrap(err, "count the hosts of a workspace")
	}
	if count > mostHosts {
		return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_hosts",
			Message: fmt.Sprintf("the workspace has had %d hosts in its tracking_url, which is the most", mostHosts)}
	}
	return nil
}

func hostOf(u *url.URL) string { return strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")) }

// Host is a host of tracking URLs, and the workspace to which it belongs.
type Host struct {
	Host, Workspace string
	CreatedAt       time.Time
}

// Hosts lists the hosts of all workspaces, by name.
func Hosts(ctx context.Context, pool *pgxpool.Pool) ([]Host, error) {
	rows, _ := pool.Query(ctx, `
		select h.host, w.name as workspace, h.created_at from tracking_hosts h join workspaces w on w.id = h.workspace_id order by h.host`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Host])
	return all, lemma.Wrap(err, "list hosts")
}

// ReleaseHost lets another workspace use a host. A workspace that has it in its tracking URL keeps it.
func ReleaseHost(ctx context.Context, pool *pgxpool.Pool, name string) error {
	tag, err := fence.Exec(ctx, pool, `
		delete from tracking_hosts h where host = $1 and not exists (
			select from workspaces w where w.id = h.workspace_id
			and rtrim(lower(regexp_replace(w.tracking_url, '^https://([^:/]*)(:[0-9]+)?$', '\1')), '.') = h.host)`,
		strings.ToLower(name))
	if err == nil && tag.RowsAffected() == 0 {
		return errors.New("no workspace has the host, or one has it in its tracking_url: change that first")
	}
	return lemma.Wrap(err, "release host %s", name)
}
