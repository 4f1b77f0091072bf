package links_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/links"
	"lemma/pgtest"
)

// counted counts the statements of a pool.
type counted struct{ statements atomic.Int64 }

func (c *counted) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}

func (c *counted) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// counting is a process whose statements and refused tokens are counted.
func (f fixture) counting() (*links.Links, *counted, *prometheus.Registry) {
	f.t.Helper()
	c, registry := &counted{}, prometheus.NewRegistry()
	config := f.pool.Config()
	config.ConnConfig.Tracer = c
	pool, err := pgxpool.NewWithConfig(f.t.Context(), config)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(pool.Close)
	return links.New(pool, f.box, links.NewMetrics(registry)), c, registry
}

// forge is a token of a key with a signature that no key made.
func forge(ws uuid.UUID, number int) string {
	raw := append(binary.BigEndian.AppendUint16([]byte{byte(links.Unsubscribe)}, uint16(number)), ws[:]...)
	return base64.RawURLEncoding.EncodeToString(append(raw, make([]byte, 60)...))
}

// Forged tokens touch the database only for keys that are not in memory, and share these
// statements. Meanwhile a key that exists is found.
func TestForgedTokensShareStatements(t *testing.T) {
	f := setup(t)
	own := f.sign(f.ws, time.Now(), "p")
	l, count, registry := f.counting()
	refuse := func(token string) {
		if _, _, err := l.Verify(t.Context(), links.Unsubscribe, token); lemma.KindOf(err) != lemma.NotFound {
			t.Errorf("a forged token: %v", err)
		}
	}
	const tokens = 600
	begun := time.Now()
	var all sync.WaitGroup
	for from := range 20 {
		all.Go(func() {
			for i := range tokens / 20 {
				ws := f.ws
				if i%2 == 0 {
					ws = lemma.NewID()
				}
				refuse(forge(ws, 2+from*tokens+i))
			}
		})
	}
	all.Go(func() {
		if _, got, err := l.Verify(t.Context(), links.Unsubscribe, own); err != nil || string(got) != "p" {
			t.Errorf("a link among forged ones: %q, %v", got, err)
		}
	})
	all.Wait()
	if n, most := count.statements.Load(), 2+int64(time.Since(begun)/links.LookupPause); n > most {
		t.Errorf("%d statements for %d forged tokens, more than %d", n, tokens, most)
	}
	before := count.statements.Load()
	for range tokens {
		refuse(forge(f.ws, 1)) // its key is in memory
		refuse("x" + own)
	}
	if n := count.statements.Load() - before; n != 0 {
		t.Errorf("%d statements for tokens of a key in memory", n)
	}
	for reason, want := range map[string]float64{"unknown_key": tokens, "forged": tokens, "malformed": tokens} {
		if got := refused(t, registry, reason); got != want {
			t.Errorf("%v tokens were counted as %s, not %v", got, reason, want)
		}
	}
}

func refused(t *testing.T, registry *prometheus.Registry, reason string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == "unsubscribe" && m.GetLabel()[1].GetValue() == reason {
			return m.GetCounter().GetValue()
		}
	}
	return 0
}

// A key that cannot be opened fails its own tokens only.
func TestABrokenKeyFailsItsOwnTokens(t *testing.T) {
	f := setup(t)
	token := f.sign(f.ws, time.Now(), "p")
	other := pgtest.Workspace(t, f.pool)
	pgtest.Exec(t, f.pool, `insert into link_keys (workspace_id, number, id, secret) values ($1, 1, $2, 'broken')`, other, lemma.NewID())
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { f.valid(token, "p") })
		all.Go(func() {
			if _, _, err := f.Verify(t.Context(), links.Unsubscribe, forge(other, 1)); err == nil || lemma.KindOf(err) == lemma.NotFound {
				t.Errorf("a token of a broken key: %v", err)
			}
		})
	}
	all.Wait()
}
