package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgtest"
	"lemma/secrets"
	"lemma/sender/report"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
	"lemma/signing"
	"lemma/workspaces"
)

// echoed is a process with providers whose servers repeat their secrets.
type echoed struct {
	*Server
	t     *testing.T
	ws    uuid.UUID
	token string
	log   *lockedBuffer
}

type lockedBuffer struct {
	sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) text() string {
	b.Lock()
	defer b.Unlock()
	return b.String()
}

func startEchoed(t *testing.T, roots wire.Operator) *echoed {
	t.Helper()
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.DB(t)
	b := &echoed{t: t, ws: pgtest.Workspace(t, pool), log: &lockedBuffer{}}
	log := slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	roots.AllowPrivate, roots.ShowPrivate, roots.Log = true, true, log
	if b.Server, err = New(Deps{Pool: pool, Box: box, Log: log}, Config{PublicURL: publicURL, Carriers: roots}); err != nil {
		t.Fatal(err)
	}
	if _, b.token, err = b.Workspaces.CreateKey(t.Context(), b.ws,
		workspaces.NewKey{ID: lemma.NewID(), Name: "t", Scopes: []string{workspaces.Admin}}); err != nil {
		t.Fatal(err)
	}
	if err := b.StartWorkers(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Stop() })
	return b
}

func (b *echoed) provider(kind string, config, secret map[string]any) string {
	b.t.Helper()
	var made struct{ ID string }
	callAPI(b.t, b.API, b.token, "POST", "/v1/providers", map[string]any{"name": uuid.NewString(), "kind": kind, "config": config,
		"secrets": secret}, &made)
	return made.ID
}

// send sends a message for each echo, and waits for their ends.
func (b *echoed) send(provider, want string) {
	b.t.Helper()
	var ids []string
	for i := range echoes {
		to := fmt.Sprintf("ada-%d@shop.example", i)
		if i == 0 {
			to = echoedAddress
		}
		ids = append(ids, b.start(provider, to, fmt.Sprint("echo ", i)))
	}
	for _, id := range ids {
		pgtest.Eventually(b.t, 20*time.Second, id+" is "+want, func() bool {
			var n struct{ Status string }
			_ = json.Unmarshal([]byte(b.get("/v1/notifications/"+id)), &n)
			return n.Status == want
		})
		b.clean("notification", b.get("/v1/notifications/"+id))
		b.clean("explain", b.get("/v1/notifications/"+id+"/explain"))
	}
}

// start sends a message, and returns its id.
func (b *echoed) start(provider, to, subject string) string {
	b.t.Helper()
	var made struct{ Notification struct{ ID string } }
	callAPI(b.t, b.API, b.token, "POST", "/v1/notifications", map[string]any{"to": map[string]any{"address": to},
		"provider_id": provider, "transactional": true, "from": map[string]any{"email": "news@shop.example"},
		"content": map[string]any{"channel": "email", "subject": subject, "html": "<p>Sale</p>"}}, &made)
	return made.Notification.ID
}

func (b *echoed) get(path string) string {
	b.t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+b.token)
	w := httptest.NewRecorder()
	b.API.ServeHTTP(w, r)
	if w.Code != 200 {
		b.t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// hook sends a request to the webhook URL of a provider, and returns the answer.
func (b *echoed) hook(kind, provider string, header http.Header, body []byte) (status int) {
	b.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/hooks/"+kind+"/"+provider, bytes.NewReader(body))
	r.Header = header
	w := httptest.NewRecorder()
	b.API.ServeHTTP(w, r)
	b.clean("the answer to a webhook", w.Body.String())
	return w.Code
}

// Whatever a provider's server repeats of the account's secrets, in accepted and refused
// answers, in webhooks and in mails: nothing that is stored, shown or logged contains it.
func TestNoSecretThatAServerRepeatsIsKept(t *testing.T) {
	t.Parallel()
	web := sendertest.ServeHTTPS(t, true, repeatingWeb)
	b := startEchoed(t, wire.Operator{Roots: web.Roots})
	for _, password := range []string{echoedPassword, echoedShort} {
		for _, rejects := range []bool{false, true} {
			host, port := repeatingMail(t, password, rejects)
			id := b.provider("smtp", map[string]any{"host": host, "port": port, "tls": "none", "username": "lemma"},
				map[string]any{"password": password})
			b.send(id, map[bool]string{false: "sent", true: "failed"}[rejects])
		}
	}
	key := signing.Secret(echoedKey)
	gateway := func(status int) string {
		return b.provider("http", map[string]any{"url": fmt.Sprintf("%s/%d", web.URL, status),
			"responses": map[string]any{"statuses": map[string]any{"not_accepted": []int{409}}}},
			map[string]any{"signing_secret": key, "webhook_secret": key, "headers": map[string]string{"Authorization": "Bearer " + echoedToken}})
	}
	accepting := gateway(200)
	b.send(accepting, "sent")
	b.send(gateway(422), "failed")
	b.send(gateway(409), "pending")
	b.send(gateway(403), "pending")
	b.eventually("the refusals are recorded", `
		select (select count(*) from provider_events where source = 'response' and detail like '%[redacted]%') >= $1
			and exists (select from provider_meters where last_error like '%403%')`, len(echoes))
	b.report(accepting, key)
	b.reportMails()
	b.failBeforeMessages()

	b.stored(`select detail from attempts where outcome = 'rejected'`, 3*len(echoes))
	b.stored(`select carrier_id from attempts where outcome = 'accepted'`, len(echoes))
	b.stored(`select detail from provider_events where source = 'webhook'`, 3*len(echoes))
	b.stored(`select carrier_id from provider_events where source = 'webhook'`, len(echoes))
	b.stored(`select source_event_id from provider_events where source = 'webhook'`, len(echoes))
	b.stored(`select reason from provider_events where source = 'webhook'`, len(echoes))
	b.clean("providers", b.get("/v1/providers"))
	b.clean("the log", b.log.text())
	b.cleanTables()
}

// report reports an event for each echo over the webhooks of a service and of Postmark.
func (b *echoed) report(provider, key string) {
	b.t.Helper()
	postmark := b.provider("smtp", map[string]any{"host": "mail.example.com", "port": 587, "webhooks": map[string]any{"format": "postmark"}},
		map[string]any{"webhook_secret": echoedHook})
	sign := func(id string, body []byte) http.Header {
		h := http.Header{}
		signing.Set(h, [][]byte{echoedKey}, id, time.Now(), body)
		return h
	}
	for i, echo := range echoes {
		text := echo(key)
		body, _ := json.Marshal(map[string]any{"type": "bounced", "address": echoedAddress, "id": fmt.Sprint(i, " ", text), "carrier_id": text,
			"reason": text, "detail": text})
		if status := b.hook("http", provider, sign(fmt.Sprint("event-", i), body), body); status != 200 {
			b.t.Errorf("echo %d: %d", i, status)
		}
		body, _ = json.Marshal(map[string]any{"RecordType": "Bounce", "Type": echo(echoedHook), "ID": i + 1, "Details": echo(echoedHook),
			"Email": echoedAddress, "MessageID": echo(echoedHook)})
		header := http.Header{"X-Webhook-Token": {echoedHook}}
		if status := b.hook("smtp", postmark, header, body); status != 200 {
			b.t.Errorf("echo %d by Postmark: %d", i, status)
		}
	}
	for i, body := range []map[string]any{{"type": key}, {key: 1}, {"type": "bounced", "address": key},
		{"type": strings.Repeat("x", 30) + key}, {"type": "bounced", "address": key + "@shop.example"}} {
		raw, _ := json.Marshal(body)
		b.hook("http", provider, sign(fmt.Sprint("unreadable-", i), raw), raw)
	}
}

// reportMails reports a bounce for each echo by a mail.
func (b *echoed) reportMails() {
	b.t.Helper()
	id := b.provider("smtp", map[string]any{"host": "mail.example.com", "port": 587, "webhooks": map[string]any{"format": "dsn"}},
		map[string]any{"webhook_secret": echoedHook})
	for i, echo := range echoes {
		proven := string(report.Key(echoedHook).AppendMessageID(nil, lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())))
		mail := strings.Replace(bounceMail(proven), "Status: 5.1.1", "Status: 5.1.1\r\nDiagnostic-Code: smtp; "+echo(echoedHook), 1)
		if err := b.receiveMail(b.t.Context(), id, []byte(mail)); err != nil {
			b.t.Errorf("mail %d: %v", i, err)
		}
	}
}

func (b *echoed) eventually(what, query string, args ...any) {
	b.t.Helper()
	pgtest.Eventually(b.t, 20*time.Second, what, func() (done bool) {
		if err := b.Pool.QueryRow(b.t.Context(), query, args...).Scan(&done); err != nil {
			b.t.Fatal(err)
		}
		return done
	})
}

// stored checks that at least so many texts of a column are redacted: the servers did repeat
// the secrets.
func (b *echoed) stored(query string, least int) {
	b.t.Helper()
	rows, _ := b.Pool.Query(b.t.Context(), query)
	all, err := pgx.CollectRows(rows, pgx.RowTo[*string])
	n := 0
	for _, text := range all {
		if text != nil && strings.Contains(*text, "redacted") {
			n++
		}
	}
	if err != nil || n < least {
		b.t.Errorf("%s: %d of %d are redacted, want %d: %v", query, n, len(all), least, err)
	}
}

// cleanTables checks every row of every table.
func (b *echoed) cleanTables() {
	b.t.Helper()
	rows, _ := b.Pool.Query(b.t.Context(), `
		select format('%I.%I', schemaname, tablename) from pg_tables where schemaname not in ('pg_catalog', 'information_schema')`)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Contains(tables, "public.attempts_default") && len(tables) < 20 {
		b.t.Fatal(tables, err)
	}
	for _, table := range tables {
		rows, _ := b.Pool.Query(b.t.Context(), `select to_jsonb(t)::text from `+table+` t`)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			b.t.Fatal(err)
		}
		for _, row := range all {
			b.clean(table, row)
		}
	}
}
