package message

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// versionKey is the key of a compiled version in the cache. Versions never change.
type versionKey struct {
	workspace, template uuid.UUID
	version             int
}

// CacheBytes bounds a cache of compiled contents, by Compiled.Bytes. One workspace has
// CacheShare of it at most, which suffices for the largest content.
const (
	CacheBytes = 64 << 20
	CacheShare = 16 << 20
)

// VersionRef names a version of a template.
type VersionRef struct {
	Template uuid.UUID
	Version  int
}

// Needs is what a version of a template needs to be sent.
type Needs struct {
	Channel   lemma.Channel
	Variables []string // the names that a row of data must have, sorted
}

// NeedsOf reads what versions need, without compiling them. Those that do not exist are left out.
func (t *Templates) NeedsOf(ctx context.Context, ws uuid.UUID, all []VersionRef) (map[VersionRef]Needs, error) {
	templates, versions := make([]uuid.UUID, len(all)), make([]int, len(all))
	for i, v := range all {
		templates[i], versions[i] = v.Template, v.Version
	}
	rows, _ := t.pool.Query(ctx, `
		select r.template, r.version, v.channel, v.variables from unnest($2::uuid[], $3::int[]) as r (template, version)
		cross join lateral (
			select t.channel, v.variables from template_versions v join templates t on t.workspace_id = $1 and t.id = v.template_id
			where v.workspace_id = $1 and v.template_id = r.template and v.version = r.version limit 1
		) v`, ws, templates, versions)
	of := map[VersionRef]Needs{}
	var v VersionRef
	var needs Needs
	_, err := pgx.ForEachRow(rows, []any{&v.Template, &v.Version, &needs.Channel, &needs.Variables}, func() error {
		of[v] = needs
		needs = Needs{}
		return nil
	})
	return of, lemma.Wrap(err, "read the variables of templates")
}

// Compiled returns a compiled version.
func (t *Templates) Compiled(ctx context.Context, ws, id uuid.UUID, version int) (*Compiled, error) {
	key := versionKey{ws, id, version}
	if held, ok := t.cache.Get(key); ok {
		return held, nil
	}
	now := t.cache.Now()
	v, err := t.Version(ctx, ws, id, version)
	if err != nil {
		return nil, err
	}
	made, err := Compile(ws, v.Content)
	if err != nil {
		return nil, err
	}
	t.cache.Put(now, ws, key, made, made.Bytes())
	return made, nil
}
