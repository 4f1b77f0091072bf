package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/server"
)

// unprotected is a connection that could be read or intercepted on the network.
type unprotected struct {
	prefix  string
	id      uuid.UUID
	title   string
	warning string
}

func (u unprotected) name() string {
	return fmt.Sprintf("%s %q", lemma.FormatID(u.prefix, u.id), u.title)
}

// mostUnprotected are listed of each kind; the rest is counted.
const mostUnprotected = 20

func unprotectedSources(ctx context.Context, pool *pgxpool.Pool) ([]unprotected, int, error) {
	rows, _ := pool.Query(ctx, `
		select workspace_id, id, name, kind, address, tls from data_sources
		where tls in ('disable', 'prefer', 'require') order by workspace_id, id`)
	return warned(rows, lemma.PrefixDataSource, func(row pgx.CollectableRow) (id uuid.UUID, name string, warnings []string, err error) {
		var s audience.Source
		err = row.Scan(&s.WorkspaceID, &s.ID, &s.Name, &s.Kind, &s.Address, &s.TLS)
		return s.ID, s.Name, s.AllWarnings(), err
	})
}

func unprotectedProviders(ctx context.Context, pool *pgxpool.Pool) ([]unprotected, int, error) {
	rows, _ := pool.Query(ctx, `select workspace_id, id, name, kind, config from providers order by workspace_id, id`)
	return warned(rows, lemma.PrefixProvider, func(row pgx.CollectableRow) (id uuid.UUID, name string, warnings []string, err error) {
		var ws uuid.UUID
		var kind string
		var config json.RawMessage
		err = row.Scan(&ws, &id, &name, &kind, &config)
		return id, name, server.AccountWarnings(kind, config), err
	})
}

// warned collects the first rows with a warning, and counts the others.
func warned(rows pgx.Rows, prefix string,
	read func(pgx.CollectableRow) (uuid.UUID, string, []string, error)) (list []unprotected, more int, err error) {
	defer rows.Close()
	for rows.Next() {
		id, name, warnings, err := read(rows)
		if err != nil {
			return nil, 0, err
		}
		for _, w := range warnings {
			if len(list) == mostUnprotected {
				more++
				continue
			}
			list = append(list, unprotected{prefix, id, name, w})
		}
	}
	return list, more, rows.Err()
}
