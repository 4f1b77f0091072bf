package tracking

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/links"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/workspaces"
)

// bundle is a workspace with an origin of ten notifications, sent an hour ago.
type bundle struct {
	pgtest.Shop
	*Tracking
	provider, origin uuid.UUID
	sent             time.Time
	registry         *prometheus.Registry // of Tracking
}

const public = "https://lemma.shop.example"

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	s := pgtest.NewShop(t)
	b := &bundle{Shop: s, origin: lemma.NewID(), provider: s.NewProvider("http"), sent: time.Now().Add(-time.Hour)}
	b.Tracking, b.registry = b.process(), prometheus.NewRegistry()
	b.Metrics = NewMetrics(b.registry)
	b.Exec(`insert into templates (workspace_id, id, name, channel) values ($1, $2, 't', 'email')`, b.Workspace, b.provider)
	b.Exec(`insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		values ($1, $2, 1, 'Hi', '', 'Hi', '{}')`, b.Workspace, b.provider)
	b.insert(b.origin)
	return b
}

// process is one more process.
func (b *bundle) process() *Tracking {
	pool := b.Connect()
	return New(Deps{Pool: pool, Links: links.New(pool, pgtest.Box(b.T), nil), Workspaces: workspaces.New(pool),
		PublicURL: func() string { return public }, Log: slog.New(slog.DiscardHandler)})
}

func (b *bundle) insert(origin uuid.UUID) {
	b.T.Helper()
	b.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
		values ($1, $2, 'email', $3, 1, 'Shop', 'news@shop.example', '', '{}')`, b.Workspace, origin, b.provider)
	all := make([]notifications.Recipient, 10)
	for i := range all {
		all[i] = notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: fmt.Sprintf("p%d@shop.example", i)}
	}
	b.Must(pgx.BeginFunc(b.T.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := notifications.New(b.Pool).Insert(b.T.Context(), tx, notifications.Chunk{WorkspaceID: b.Workspace, OriginID: origin,
			ProviderID: b.provider, ContentID: origin, Run: 1, MaxAttempts: 2, BatchSize: 5, Recipients: all})
		return err
	}))
	b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, at)
		select workspace_id, batch_id, ordinal, 1, 'accepted', true, 'response', $3 from notifications
		where workspace_id = $1 and origin_id = $2`, b.Workspace, origin, b.sent)
}

func keyOf(i int) uuid.UUID { return lemma.Key("test/1", fmt.Sprint(i)) }

// links are the pixel and the links of notification i.
func (b *bundle) links(i int) message.Tracking {
	b.T.Helper()
	s, err := b.Signer(b.T.Context(), b.Workspace, time.Now(), message.Track{Opens: true, Clicks: true})
	b.Must(err)
	base, err := b.Base(b.T.Context(), b.Workspace)
	b.Must(err)
	return s.Of(base, "", b.origin, keyOf(i))
}

// A signer makes what its content tracks, and signs nothing else.
func TestASignerMakesWhatIsTracked(t *testing.T) {
	b := setup(t)
	for _, track := range []message.Track{{}, {Opens: true}, {Clicks: true}, {Opens: true, Clicks: true}} {
		s, err := b.Signer(t.Context(), b.Workspace, time.Now(), track)
		b.Must(err)
		made := s.Of(public, "", b.origin, keyOf(1))
		if (made.Open != "") != track.Opens || (made.Click != nil) != track.Clicks {
			t.Errorf("%+v: %+v", track, made)
		}
	}
}

func (b *bundle) metric(name string) float64 {
	b.T.Helper()
	all, err := b.registry.Gather()
	b.Must(err)
	for _, m := range all {
		if m.GetName() == name {
			return m.GetMetric()[0].GetCounter().GetValue()
		}
	}
	b.T.Fatalf("there is no metric %s", name)
	return 0
}

const browser = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"

// request sends a request of a browser, unless headers replace its own.
func (b *bundle) request(method, url string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, strings.TrimPrefix(url, public), nil)
	r.Header.Set("User-Agent", browser)
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w.Result()
}

// put stores events as if they had been received.
func (b *bundle) put(all ...event) {
	b.T.Helper()
	for i := range all {
		all[i].id = madeAt(all[i].at, lemma.NewID())
	}
	_, err := b.store(b.T.Context(), b.Workspace, all)
	b.Must(err)
}

func (b *bundle) event(i int, kind string, link int, at time.Duration) event {
	return event{of: target{origin: b.origin, key: keyOf(i), link: link}, kind: kind, at: b.sent.Add(at)}
}

func (b *bundle) applyAll() {
	b.T.Helper()
	for {
		n, err := b.Apply(b.T.Context(), -time.Hour)
		b.Must(err)
		if n == 0 {
			return
		}
	}
}

func (b *bundle) counts() notifications.Engagement {
	b.T.Helper()
	all, err := notifications.New(b.Pool).CountsOf(b.T.Context(), b.Workspace, []uuid.UUID{b.origin})
	b.Must(err)
	return all[b.origin].Engagement
}

func (b *bundle) wantCounts(want notifications.Engagement) {
	b.T.Helper()
	if d := cmp.Diff(want, b.counts()); d != "" {
		b.T.Error(d)
	}
}

func TestClicksAreRedirected(t *testing.T) {
	b := setup(t)
	for url, location := range map[string]string{
		"https://shop.example/?a=1&b=%20": "https://shop.example/?a=1&b=%20",
		"http://shop.example/é":           "http://shop.example/%C3%A9",
	} {
		link := b.links(0).Click(3, url)
		for _, method := range []string{"GET", "HEAD"} {
			got := b.request(method, link)
			if got.StatusCode != http.StatusFound || got.Header.Get("Location") != location || got.Header.Get("Cache-Control") != "no-store" ||
				got.Header["Set-Cookie"] != nil {
				t.Errorf("%s %s: %d %v", method, url, got.StatusCode, got.Header)
			}
		}
		if again := b.links(0).Click(3, url); again != link {
			t.Errorf("two links: %s, %s", link, again)
		}
	}
	got := b.request("GET", b.links(0).Open)
	if got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != "image/gif" || got.Header.Get("Cache-Control") != "no-store" ||
		got.Header["Set-Cookie"] != nil {
		t.Errorf("pixel: %d %v", got.StatusCode, got.Header)
	}
	b.WantCount(2, `select count(*) from tracking_queue where type = 'probed'`)
	b.WantCount(2, `select count(*) from tracking_queue where type = 'clicked' and link = 3`)
	b.WantCount(1, `select count(*) from tracking_queue where type = 'opened'`)
}

// No token of another purpose and no changed token redirects.
func TestNoOpenRedirect(t *testing.T) {
	b := setup(t)
	to := b.links(0)
	click, open := strings.TrimPrefix(to.Click(0, "https://shop.example/"), public+ClickPath), strings.TrimPrefix(to.Open, public+OpenPath)
	wrong := []string{ClickPath, OpenPath, ClickPath + open, OpenPath + click, ClickPath + click + "A", ClickPath + "https://evil.example/"}
	for i := range click {
		changed := []byte(click)
		changed[i] ^= 1
		wrong = append(wrong, ClickPath+string(changed))
	}
	for _, path := range wrong {
		if strings.ContainsAny(path, "\x7f?#% ") {
			continue
		}
		got := b.request("GET", path)
		if got.StatusCode != http.StatusNotFound || got.Header.Get("Location") != "" {
			t.Errorf("%s: %d to %s", path, got.StatusCode, got.Header.Get("Location"))
		}
	}
	b.WantCount(0, `select count(*) from tracking_queue`)
}

// Forged tokens of a workspace whose key is in memory are refused without the database.
func TestForgedTokensNeedNoDatabase(t *testing.T) {
	b := setup(t)
	to := b.links(0)
	b.request("GET", to.Open)
	b.Tracking.Pool.Close()
	for _, url := range []string{to.Open, to.Click(0, "https://shop.example/")} {
		at := len(url) - 10
		other := map[bool]string{true: "B", false: "A"}[url[at] == 'A']
		if got := b.request("GET", url[:at]+other+url[at+1:]); got.StatusCode != http.StatusNotFound {
			t.Errorf("%d", got.StatusCode)
		}
	}
	if n := b.metric("lemma_tracking_lost_total"); n != 0 {
		t.Errorf("%v lost", n)
	}
}

// The event is lost then, and counted.
func TestClicksNeedNoDatabase(t *testing.T) {
	b := setup(t)
	to := b.links(0)
	link := to.Click(0, "https://shop.example/")
	b.request("GET", link)
	b.Tracking.Pool.Close()
	if got := b.request("GET", link); got.StatusCode != http.StatusFound || got.Header.Get("Location") != "https://shop.example/" {
		t.Errorf("%d %v", got.StatusCode, got.Header)
	}
	if got := b.request("GET", to.Open); got.StatusCode != http.StatusOK {
		t.Errorf("pixel: %d", got.StatusCode)
	}
	if n := b.metric("lemma_tracking_lost_total"); n != 2 {
		t.Errorf("%v lost", n)
	}
}

func TestTheTrackingURLOfAWorkspace(t *testing.T) {
	b := setup(t)
	b.Exec(`update workspaces set tracking_url = 'https://go.shop.example' where id = $1`, b.Workspace)
	if to := b.links(0); !strings.HasPrefix(to.Open, "https://go.shop.example/o/") {
		t.Error(to.Open)
	}
}

// Several processes apply the events of several origins: each is counted once.
func TestEachEventIsCountedOnce(t *testing.T) {
	b := setup(t)
	b.Subscribe("notification.opened", "notification.clicked")
	var all []event
	for i := range 5 {
		for n := range 600 {
			at := time.Duration(n+1) * time.Minute / 10
			all = append(all, b.event(i, opened, 0, at), b.event(i, clicked, i%2, at))
		}
	}
	b.put(all...)
	var appliers sync.WaitGroup
	for range 4 {
		p := b.process()
		appliers.Go(func() {
			for {
				n, err := p.Apply(t.Context(), -time.Hour)
				if err != nil {
					t.Error(err)
				}
				if n == 0 {
					return
				}
			}
		})
	}
	appliers.Wait()
	b.applyAll()
	b.wantCounts(notifications.Engagement{Opens: 3000, UniqueOpens: 5, Clicks: 3000, UniqueClicks: 5})
	b.WantCount(1800, `select clicks from link_counts where link = 0`)
	b.WantCount(1200, `select clicks from link_counts where link = 1`)
	b.WantCount(6000, `select count(*) from tracking_events`)
	b.put(b.event(5, opened, 0, 0), b.event(9, clicked, 0, time.Minute))
	b.applyAll()
	b.wantCounts(notifications.Engagement{Opens: 3001, UniqueOpens: 6, Clicks: 3001, UniqueClicks: 6})
	for name, n := range map[string]int{"notification.opened": 6, "notification.clicked": 6} {
		b.WantCount(n, `
			select count(distinct substr(keys, at, 16)) from events_out, generate_series(1, length(keys), 16) as at where type = $1`, name)
		b.WantCount(0, `select count(*) from events_out e where type = $1
			and count <> (select count(distinct substr(keys, at, 16)) from generate_series(1, length(e.keys), 16) as at)`, name)
	}
}

// A store that is repeated, since its first outcome was unknown, counts nothing twice.
func TestARepeatedStoreIsCountedOnce(t *testing.T) {
	b := setup(t)
	again := []event{{id: lemma.NewID(), of: target{origin: b.origin, key: keyOf(0)}, kind: opened, at: b.sent}}
	for range 3 {
		_, err := b.store(t.Context(), b.Workspace, again)
		b.Must(err)
		_, err = b.store(t.Context(), b.Workspace, again)
		b.Must(err)
		b.applyAll()
	}
	b.wantCounts(notifications.Engagement{Opens: 1, UniqueOpens: 1})
}

func TestEventsOfNoNotification(t *testing.T) {
	b := setup(t)
	b.put(event{of: target{origin: lemma.NewID(), key: keyOf(0)}, kind: opened, at: b.sent})
	b.applyAll()
	b.WantCount(0, `
		select (select count(*) from tracking_events) + (select count(*) from tracking_queue) + (select count(*) from engagement_counts)`)
	if n := b.metric("lemma_tracking_unmatched_total"); n != 1 {
		t.Errorf("%v unmatched", n)
	}
}

// Events are applied when all that the rules compare them with are stored.
func TestEventsSettle(t *testing.T) {
	b := setup(t)
	b.request("GET", b.links(0).Open)
	if n, err := b.Apply(t.Context(), settled); n != 0 || err != nil {
		t.Errorf("%d applied, %v", n, err)
	}
	b.WantCount(1, `select count(*) from tracking_queue`)
}

// The first open and click of a notification keep their times, whatever order they are
// applied in, and those of machines have their own.
func TestFirstTimes(t *testing.T) {
	b := setup(t)
	machine := b.event(0, opened, 0, 10*time.Minute)
	machine.machine = applePrivacy
	for _, chunk := range [][]event{
		{b.event(0, opened, 0, 30*time.Minute), b.event(0, opened, 0, 40*time.Minute), b.event(1, probed, 1, 0)},
		{b.event(0, opened, 0, 20*time.Minute), b.event(0, clicked, 1, 35*time.Minute), machine, b.event(2, clicked, 1, time.Second)},
	} {
		b.put(chunk...)
		b.applyAll()
	}
	type times struct {
		Content                                      uuid.UUID
		Opened, Clicked, MachineOpened, MachineClick *time.Time
	}
	rows, _ := b.Pool.Query(t.Context(), `
		select content_id, opened_at, clicked_at, machine_opened_at, machine_clicked_at from engagements
		where workspace_id = $1 and origin_id = $2 order by opened_at is null`, b.Workspace, b.origin)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[times])
	b.Must(err)
	at := func(d time.Duration) *time.Time { return new(b.sent.Add(d).Truncate(time.Microsecond).Local()) }
	want := []times{{b.origin, at(20 * time.Minute), at(35 * time.Minute), at(10 * time.Minute), nil},
		{b.origin, nil, nil, nil, at(time.Second)}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
