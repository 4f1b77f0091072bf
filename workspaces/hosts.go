package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
)

// mostHosts is how many hosts a workspace has had in its tracking URL.
const mostHosts = 100

// claimHost makes the host of a tracking URL one of the workspace, also later on: its links lead there.
// That of a public URL stays of all.
func claimHost(ctx context.Context, tx pgx.Tx, ws uuid.UUID, trackingURL string) error {
	name := hostOf(trackingURL)
	if name == "" {
		return nil
	}
	tag, err := tx.Exec(ctx, `
		insert into tracking_hosts (host, workspace_id) values ($1, $2)
		on conflict (host) do update set workspace_id = excluded.workspace_id where tracking_hosts.workspace_id = excluded.workspace_id`,
		name, ws)
	if err != nil {
		return lemma.Wrap(err, "claim a host")
	}
	if tag.RowsAffected() == 0 {
		ofAll := false
		err := tx.QueryRow(ctx, `select workspace_id is null from tracking_hosts where host = $1`, name).Scan(&ofAll)
		if err != nil || ofAll {
			return lemma.Wrap(err, "read the owner of a host")
		}
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

// hostOf is the host of a tracking URL; empty without one.
func hostOf(trackingURL string) string {
	to, err := url.Parse(trackingURL)
	if err != nil {
		return ""
	}
	return lemma.HostName(to.Hostname())
}

// Host is a host of tracking URLs, and the workspace to which it belongs: none for a public URL.
type Host struct {
	Host, Workspace string
	CreatedAt       time.Time
}

// Hosts lists all hosts by name.
func Hosts(ctx context.Context, pool *pgxpool.Pool) ([]Host, error) {
	rows, _ := pool.Query(ctx, `
		select h.host, coalesce(w.name, '') as workspace, h.created_at from tracking_hosts h
		left join workspaces w on w.id = h.workspace_id order by h.host`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Host])
	return all, lemma.Wrap(err, "list hosts")
}

// ReleaseHost takes a host from its workspace, also out of its tracking URL, so that another can use it.
func ReleaseHost(ctx context.Context, pool *pgxpool.Pool, name string) error {
	name = lemma.HostName(name)
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var id uuid.UUID
		err := tx.QueryRow(ctx, `
			delete from tracking_hosts where host = $1 and workspace_id is not null returning workspace_id`, name).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("no workspace has the host %s", name)
		}
		if err != nil {
			return fmt.Errorf("release host %s: %w", name, err)
		}
		var now string
		err = tx.QueryRow(ctx, `select tracking_url from workspaces where id = $1 for update`, id).Scan(&now)
		if err != nil || hostOf(now) != name {
			return lemma.Wrap(err, "read the tracking URL")
		}
		_, err = tx.Exec(ctx, `update workspaces set tracking_url = '', version = version + 1 where id = $1`, id)
		return lemma.Wrap(err, "change the tracking URL")
	})
}
