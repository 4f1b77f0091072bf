package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/blobs"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
	"lemma/signing"
	"lemma/workspaces"
)

// rest is a process with a shop, a carrier that rejects one address, and the SQL of the guide.
type rest struct {
	*shop.Fixture
	*Server
	token   string
	carrier *sendertest.HTTPServer
	guide   map[string]string // the SQL of docs/guides/send-to-the-rest.md, by how it begins
	source  uuid.UUID

	mu     sync.Mutex
	called []string
}

// guideSQL are the blocks of SQL of the guide.
func guideSQL(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../docs/guides/send-to-the-rest.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	for i, name := range []string{"create", "load", "log", "mark", "rest", "one address", "some"} {
		if len(blocks) != 7 {
			t.Fatalf("the guide has %d blocks of SQL", len(blocks))
		}
		all[name] = blocks[i][1]
	}
	return all
}

// rejected is the address that the carrier rejects.
const rejected = "c9@shop.example"

func startRest(t *testing.T) *rest {
	t.Helper()
	b := &rest{Fixture: shop.New(pgtest.NewShop(t), shop.Local, nil), guide: guideSQL(t)}
	b.carrier = sendertest.ServeHTTPS(t, true, func(r sendertest.Received) sendertest.Reply {
		var message struct{ To string }
		_ = json.Unmarshal(r.Body, &message)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.called = append(b.called, message.To)
		if message.To == rejected {
			return sendertest.Reply{Status: 422}
		}
		return sendertest.Reply{Status: 200, Body: `{"id":"m"}`}
	})
	store, err := blobs.OpenFolder(t.TempDir())
	b.Must(err)
	b.Server, err = New(Deps{Pool: b.Fixture.Pool, Box: b.Box, Blobs: store, Log: slog.New(slog.DiscardHandler)},
		Config{Sources: shop.Local, PublicURL: publicURL, Carriers: wire.Operator{AllowPrivate: true, Roots: b.carrier.Roots}})
	b.Must(err)
	_, b.token, err = b.Workspaces.CreateKey(t.Context(), b.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "t", Scopes: []string{workspaces.Admin}})
	b.Must(err)
	b.Must(b.StartWorkers(context.WithoutCancel(t.Context())))
	t.Cleanup(func() { _ = b.Stop() })
	return b
}

func (b *rest) call(method, path string, in, out any) {
	b.T.Helper()
	callAPI(b.T, b.API, b.token, method, path, in, out)
}

// audienceOf makes an audience of a query that has addresses of a channel.
func (b *rest) audienceOf(channel lemma.Channel, sql string) uuid.UUID {
	b.T.Helper()
	n := audience.NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: uuid.NewString(), SQL: sql, KeyColumn: "id",
		OptedOutColumn: "opted_out"}
	switch channel {
	case lemma.SMS:
		n.PhoneColumn, n.PhoneRegion = "phone", "DE"
	case lemma.Push:
		n.PushColumn = "tokens"
	default:
		n.EmailColumn = "email"
	}
	a, err := b.Server.Audiences.Create(b.T.Context(), b.Workspace, n)
	b.Must(err)
	return a.ID
}

// send sends a campaign to an audience, and returns its id and the sorted addresses that were called.
func (b *rest) send(channel lemma.Channel, people uuid.UUID) (id string, called []string) {
	b.T.Helper()
	var provider, template, campaign struct{ ID string }
	b.call("POST", "/v1/providers", map[string]any{"name": uuid.NewString(), "kind": "http", "channel": channel,
		"config": map[string]any{"url": b.carrier.URL}, "secrets": map[string]any{"signing_secret": signing.Secret(make([]byte, 32))}}, &provider)
	content := map[string]any{"name": uuid.NewString(), "channel": channel}
	sent := map[string]any{"name": "c", "audience_id": lemma.FormatID(lemma.PrefixAudience, people), "transactional": true}
	switch channel {
	case lemma.SMS:
		content["text"] = "Hi"
	case lemma.Push:
		content["title"], content["body"] = "Hi", "Hi"
	default:
		content["subject"], content["html"] = "Hi", "<p>Hi</p>"
		sent["from"] = map[string]any{"email": "news@shop.example"}
	}
	b.call("POST", "/v1/templates", content, &template)
	sent["provider_id"], sent["template_id"] = provider.ID, template.ID
	b.call("POST", "/v1/campaigns", sent, &campaign)
	b.call("POST", "/v1/campaigns/"+campaign.ID+"/send", map[string]any{}, nil)
	pgtest.Eventually(b.T, 2*time.Minute, "the campaign is completed", func() bool {
		var now struct{ Status string }
		b.call("GET", "/v1/campaigns/"+campaign.ID, nil, &now)
		return now.Status == "completed"
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	called, b.called = b.called, nil
	slices.Sort(called)
	return campaign.ID, called
}

// export is the file of a campaign's notifications.
func (b *rest) export(campaign string) string {
	b.T.Helper()
	var x struct {
		ID, Status string
		Download   *struct{ URL string }
	}
	b.call("POST", "/v1/exports", map[string]any{"type": "notifications", "format": "ndjson",
		"filters": map[string]any{"campaign_id": campaign}}, &x)
	pgtest.Eventually(b.T, 2*time.Minute, "the export is completed", func() bool {
		b.call("GET", "/v1/exports/"+x.ID, nil, &x)
		return x.Status == "completed"
	})
	w := httptest.NewRecorder()
	b.API.ServeHTTP(w, httptest.NewRequest(http.MethodGet, strings.TrimPrefix(x.Download.URL, publicURL), nil))
	if w.Code != 200 {
		b.T.Fatalf("download: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// copying is a line of psql that copies a file into a table.
var copying = regexp.MustCompile(`(?m)^\s*\\copy (.*?) from '.*?' (.*)$`)

// load executes the steps of the guide that fill the table.
func (b *rest) load(file, log string, notSent []string) {
	b.T.Helper()
	ctx := b.T.Context()
	b.ExecDB(strings.ReplaceAll(b.guide["create"], "lemma_reader", b.Role))
	b.Must(pgx.BeginFunc(ctx, b.DB, func(tx pgx.Tx) error {
		fill := func(step, file string) {
			parts, to := copying.Split(b.guide[step], -1), copying.FindStringSubmatch(b.guide[step])
			_, err := tx.Exec(ctx, parts[0])
			b.Must(err)
			_, err = tx.Conn().PgConn().CopyFrom(ctx, strings.NewReader(file), "copy "+to[1]+" from stdin "+to[2])
			b.Must(err)
			_, err = tx.Exec(ctx, parts[1])
			b.Must(err)
		}
		fill("load", file)
		fill("log", log)
		_, err := tx.Exec(ctx, "drop table exported")
		return err
	}))
	if len(notSent) > 0 {
		b.ExecDB(strings.ReplaceAll(b.guide["mark"], `'ntf_...', 'ntf_...'`, "'"+strings.Join(notSent, "', '")+"'"))
	}
}

// The steps of docs/guides/send-to-the-rest.md: an address that was sent to gets no second
// message, whichever profile has it and however it is spelled; opt-outs of all rows hold; and
// each other address of a profile gets its message. part 1 is what the first campaign reached.
func TestSendToTheRest(t *testing.T) {
	t.Parallel()
	b := startRest(t)
	for _, c := range []struct {
		channel     lemma.Channel
		column, row string
		people      string
		log         string // of the carrier, beside the export
		changed     string // what changes before the second campaign
		orphaned    []string
		notSent     []string // of the orphaned ones, those that certainly did not arrive
		first, want []string
		one, some   int64 // addresses that the last two queries of the guide reach
	}{
		{channel: lemma.Email, column: "email text", row: "email", people: `
			(1, 'c1@shop.example', 1), (2, ' C1@SHOP.example', 2),
			(3, 'anna@bücher.example', 1), (4, 'Anna@xn--bcher-kva.example', 2), (5, 'ANNA@BÜCHER.example', 2),
			(8, 'home8@shop.example', 1), (8, 'work8@shop.example', 2),
			(9, 'c9@shop.example', 1),
			(10, 'c10@shop.example', 2), (11, 'C10@shop.example', 2),
			(12, 'c12@shop.example', 1), (13, 'c13@shop.example', 1), (13, 'work13@shop.example', 1),
			(14, '-c14@shop.example', 1), (15, '-C14@shop.example', 2), (16, '=c16@shop.example', 1), (17, '=C16@shop.example', 2),
			(18, 'home18@shop.example', 1), (18, 'work18@shop.example', 2), (19, 'Work18@shop.example', 2),
			(20, 'c20@shop.example', 1), (21, 'C20@shop.example', 2),
			(22, 'c22@shop.example', 1), (23, 'C22@shop.example', 2),
			(24, 'c24@shop.example', 2), (25, 'c25@shop.example', 1), (26, 'c26@shop.example', 2),
			(27, 'holdout27@shop.example', 2)`,
			log: "C24@shop.example\n",
			changed: `update customers set opted_out = true where id in (18, 20, 23);
				update customers set email = 'c26@shop.example' where id = 25`,
			orphaned: []string{"c12@shop.example", "c13@shop.example", "c22@shop.example"},
			notSent:  []string{"c13@shop.example", "c22@shop.example"},
			first: []string{"-c14@shop.example", "=c16@shop.example", "anna@xn--bcher-kva.example", "c12@shop.example", "c13@shop.example",
				"c1@shop.example", "c20@shop.example", "c22@shop.example", "c25@shop.example", "c9@shop.example", "home18@shop.example",
				"home8@shop.example", "work13@shop.example"},
			want: []string{"c10@shop.example", "c13@shop.example", "c26@shop.example", "c9@shop.example", "work8@shop.example"},
			one:  3,  // of the profiles 9, 10 and 26
			some: 1}, // of the profile 13, whose other address has the message
		{channel: lemma.SMS, column: "phone text", row: "phone", people: `
			(1, '030 123456', 1), (2, '+49 30 123456', 2), (3, '(030) 123-456', 2), (4, '030 654321', 2),
			(5, '030 111111', 1), (6, '030 222222', 2)`,
			changed: `update customers set phone = '+4930222222' where id = 5`,
			first:   []string{"+4930111111", "+4930123456"}, want: []string{"+4930222222", "+4930654321"}, one: 2},
		{channel: lemma.Push, column: "tokens text[]", row: "tokens", people: `
			(1, '{a}', 1), (1, '{b,a,A}', 2), (2, '{b}', 1), (2, '{b,c}', 2), (3, '{d,e}', 2), (4, '{d}', 2),
			(5, array['{"endpoint":"https://push.example/5","keys":{"auth":"x"}}'], 1),
			(6, array['{"keys": {"auth":"y"}, "endpoint":"https://push.example/5"}'], 2),
			(7, '{f}', 1), (8, '{g}', 2)`,
			changed: `update customers set tokens = '{g}' where id = 7`,
			first:   []string{"a", "b", "f", `{"endpoint":"https://push.example/5","keys":{"auth":"x"}}`},
			want:    []string{"A", "c", "d", "e", "g"}, one: 3},
	} {
		b.OpenDB("create table customers (id bigint, " + c.column + ", part int, name text, opted_out boolean default false)")
		b.ExecDB("create index on customers (id)")
		b.ExecDB("insert into customers (id, " + c.row + ", part) values " + c.people)
		b.source = b.NewSource(b.DSN)
		first, called := b.send(c.channel, b.audienceOf(c.channel,
			"select id, "+c.row+", name, opted_out from customers where part = 1"))
		if d := cmp.Diff(c.first, called); d != "" {
			t.Errorf("%s: the first campaign: %s", c.channel, d)
		}
		b.ExecDB(c.changed)
		if c.channel == lemma.Email { // as an A/B test writes it
			b.Exec(`insert into notifications (workspace_id, origin_id, key, profile_key, address, skip_reason)
				select workspace_id, id, gen_random_uuid(), '27', 'holdout27@shop.example', 'holdout' from campaigns`)
		}
		file, notSent := orphan(t, b.export(first), c.orphaned, c.notSent)
		b.load(file, c.log, notSent)
		_, called = b.send(c.channel, b.audienceOf(c.channel, b.query("rest", c.row)))
		if d := cmp.Diff(c.want, called); d != "" {
			t.Errorf("%s: the second campaign: %s", c.channel, d)
		}
		b.usesIndexes(b.query("rest", c.row))
		b.wantSendable(c.one, c.channel, b.query("one address", c.row))
		b.wantSendable(c.some, c.channel, b.query("some", c.row))
	}
}

// query is a query of the guide with a column of addresses.
func (b *rest) query(name, column string) string {
	sql := strings.ReplaceAll(b.guide[name], "id, email, name", "id, "+column+", name")
	if column == "tokens" {
		sql = strings.ReplaceAll(sql, "added_key, address", "added_key, array[address]")
	}
	return sql
}

// orphan makes notifications of an export orphaned, and returns the ids of some of them.
func orphan(t *testing.T, file string, addresses, of []string) (changed string, ids []string) {
	t.Helper()
	var lines strings.Builder
	for line := range strings.Lines(file) {
		var n map[string]any
		if err := json.Unmarshal([]byte(line), &n); err != nil {
			t.Fatal(err)
		}
		if address, _ := n["address"].(string); slices.Contains(addresses, address) {
			n["status"] = "orphaned"
			if slices.Contains(of, address) {
				ids = append(ids, n["id"].(string))
			}
			raw, _ := json.Marshal(n)
			line = string(raw) + "\n"
		}
		lines.WriteString(line)
	}
	return lines.String(), ids
}

// wantSendable counts the addresses that a query of the guide reaches.
func (b *rest) wantSendable(want int64, channel lemma.Channel, sql string) {
	b.T.Helper()
	n, err := b.Server.Audiences.Count(b.T.Context(), b.Workspace, b.audienceOf(channel, sql), channel)
	b.Must(err)
	if n.Sendable != want {
		b.T.Errorf("%s: %d can be sent to instead of %d: %+v\n%s", channel, n.Sendable, want, n, sql)
	}
}

// usesIndexes checks that a profile of a query is looked up by the index of each key column.
func (b *rest) usesIndexes(sql string) {
	b.T.Helper()
	b.Must(pgx.BeginFunc(b.T.Context(), b.DB, func(tx pgx.Tx) error {
		if _, err := tx.Exec(b.T.Context(), `set local enable_seqscan = off`); err != nil {
			return err
		}
		plan := lookupPlan(b.T, tx, sql, "'{1,2}'")
		for _, index := range []string{"customers_id_idx", "sent_before_pkey"} {
			if !strings.Contains(plan, index) {
				b.T.Errorf("the lookup reads a whole table:\n%s", plan)
			}
		}
		return nil
	}))
}

// lookupPlan is the plan of a lookup of profiles of an audience.
func lookupPlan(t testing.TB, tx pgx.Tx, sql, keys string) string {
	t.Helper()
	rows, _ := tx.Query(t.Context(), fmt.Sprintf("explain select * from (%s) audience where audience.id = any(%s)", sql, keys))
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "\n")
}
