package exports

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/blobs"
	"lemma/exports/format"
	"lemma/links"
	"lemma/pgtest"
)

type fixture struct {
	*Exports
	t    *testing.T
	pool *pgxpool.Pool
	dir  string
	ws   uuid.UUID
}

func setup(t *testing.T) fixture {
	t.Helper()
	t.Parallel()
	pool, dir := pgtest.DB(t), t.TempDir()
	return process(t, pool, dir, pgtest.Workspace(t, pool))
}

// process is one of several processes on a database and a folder.
func process(t *testing.T, pool *pgxpool.Pool, dir string, ws uuid.UUID) fixture {
	t.Helper()
	store, err := blobs.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := New(Deps{Pool: pool, Blobs: blobs.New(blobs.Deps{Pool: pool, Store: store}), Links: links.New(pool, pgtest.Box(t), nil)},
		Config{PageRows: 7})
	return fixture{e, t, pool, dir, ws}
}

// suppress stores n suppressions.
func (f fixture) suppress(n int) {
	f.t.Helper()
	for i := range n {
		pgtest.Exec(f.t, f.pool, `insert into suppressions (workspace_id, key, cause, id, channel, address)
			values ($1, $2, 'manual', $3, 'email', $4)`, f.ws, lemma.NewID(), lemma.NewID(), fmt.Sprintf("a%d@example.com", i))
	}
}

func (f fixture) create(n NewExport) Export {
	f.t.Helper()
	if n.Type == "" {
		n.Type = "suppressions"
	}
	if n.Format == "" {
		n.Format = format.CSV
	}
	n.ID = lemma.NewID()
	x, err := f.Create(f.t.Context(), f.ws, n)
	f.must(err)
	return x
}

func (f fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f fixture) run() bool {
	f.t.Helper()
	found, err := f.RunOnce(f.t.Context())
	f.must(err)
	return found
}

func (f fixture) get(id uuid.UUID) Export {
	f.t.Helper()
	x, err := f.Get(f.t.Context(), f.ws, id)
	f.must(err)
	return x
}

// download reads the file of an export as a client does.
func (f fixture) download(id uuid.UUID, header ...string) (string, *http.Response) {
	f.t.Helper()
	link, err := f.Link(f.t.Context(), f.ws, id, time.Minute)
	f.must(err)
	return f.fetch(link.URL, header...)
}

func (f fixture) fetch(path string, header ...string) (string, *http.Response) {
	f.t.Helper()
	r := httptest.NewRequestWithContext(f.t.Context(), http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	answer := w.Result()
	body, err := io.ReadAll(answer.Body)
	f.must(err)
	return string(body), answer
}

// files are the names in the store.
func (f fixture) files() (all []string) {
	f.t.Helper()
	err := filepath.WalkDir(f.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	f.must(err)
	return all
}

// expireLeases makes all leases expire, as time does when their workers have crashed.
func (f fixture) expireLeases() {
	f.t.Helper()
	pgtest.Exec(f.t, f.pool, `update blobs set lease_until = now() - interval '1 second' where status = 'registered'`)
}

func (f fixture) clean() {
	f.t.Helper()
	f.must(f.Clean(f.t.Context()))
}

func TestAnExportHasEachRowOnce(t *testing.T) {
	f := setup(t)
	f.suppress(30)
	other := process(t, f.pool, f.dir, pgtest.Workspace(t, f.pool))
	other.suppress(3)
	x := f.create(NewExport{})
	f.suppress(1) // later: left out
	if !f.run() || f.run() {
		t.Fatal("one export is written once")
	}
	x = f.get(x.ID)
	if x.Status != Completed || x.RowCount != 30 || x.Attempts != 1 || x.ExpiresAt == nil {
		t.Fatalf("%+v", x)
	}
	body, answer := f.download(x.ID)
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	f.must(err)
	if len(rows) != 31 || int64(len(body)) != x.ByteCount || answer.Header.Get("Content-Type") != format.MediaType(format.CSV) {
		t.Errorf("%d rows, %d of %d bytes, %v", len(rows), len(body), x.ByteCount, answer.Header)
	}
	seen := map[string]bool{}
	for _, row := range rows[1:] {
		seen[row[2]] = true
	}
	if len(seen) != 30 {
		t.Errorf("%d addresses", len(seen))
	}
	if _, err := f.Get(t.Context(), other.ws, x.ID); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("another workspace reads it: %v", err)
	}
	part, answer := f.download(x.ID, "Range", "bytes=5-9")
	if part != body[5:10] || answer.StatusCode != http.StatusPartialContent {
		t.Errorf("%d %q", answer.StatusCode, part)
	}
}

// A direct enrollment is stored beside the events, without a name.
func TestDirectEnrollmentsAreNoEvents(t *testing.T) {
	f := setup(t)
	for _, name := range []string{"bought", ""} {
		pgtest.Exec(t, f.pool, `insert into trigger_events (workspace_id, key, profile_key, name, occurred_at) values ($1, $2, 'p', $3, now())`,
			f.ws, lemma.NewID(), name)
	}
	x := f.create(NewExport{Type: "events"})
	f.run()
	if got := f.get(x.ID); got.RowCount != 1 {
		t.Errorf("%d rows of one event", got.RowCount)
	}
}

func TestEveryTypeAndFormatIsWritten(t *testing.T) {
	f := setup(t)
	f.suppress(2)
	for _, kind := range Types() {
		for _, name := range format.Formats {
			x := f.create(NewExport{Type: kind, Format: name, Filters: everyFilter(kind)})
			f.run()
			if got := f.get(x.ID); got.Status != Completed {
				t.Errorf("%s as %s: %+v", kind, name, got)
			}
		}
	}
}

// everyFilter sets all filters of a type that need no other row.
func everyFilter(kind string) (f Filters) {
	now := time.Now()
	for name := range types[kind].filters {
		switch name {
		case "status":
			f.Status = map[string]string{"notifications": "sent", "enrollments": "completed"}[kind]
		case "outcome":
			f.Outcome = "accepted"
		case "reason":
			f.Reason = "paused"
		case "name":
			f.Name = "x"
		case "profile_key":
			f.ProfileKey = "p"
		case "channel":
			f.Channel = "email"
		case "cause":
			f.Cause = "manual"
		case "created_after":
			f.CreatedAfter = &now
		case "created_before":
			f.CreatedBefore = &now
		}
	}
	return f
}

func TestFilters(t *testing.T) {
	f := setup(t)
	f.suppress(9)
	pgtest.Exec(t, f.pool, `update suppressions set channel = 'sms' where address = 'a3@example.com'`)
	x := f.create(NewExport{Filters: Filters{Channel: "sms"}})
	f.run()
	if got := f.get(x.ID); got.RowCount != 1 {
		t.Errorf("%d rows", got.RowCount)
	}
	other, foreign := pgtest.Workspace(t, f.pool), lemma.NewID()
	pgtest.Exec(t, f.pool, `insert into flows (workspace_id, id, name) values ($1, $2, 'x')`, other, foreign)
	for name, n := range map[string]NewExport{
		"/type":                {Type: "keys", Format: format.CSV},
		"/format":              {Type: "events", Format: "xlsx"},
		"/filters/cause":       {Type: "events", Format: format.CSV, Filters: Filters{Cause: "manual"}},
		"/filters/campaign_id": {Type: "notifications", Format: format.CSV, Filters: Filters{CampaignID: &foreign}},
		"/filters/flow_id":     {Type: "refusals", Format: format.CSV, Filters: Filters{FlowID: &foreign}}, // another workspace's
	} {
		n.ID = lemma.NewID()
		_, err := f.Create(t.Context(), f.ws, n)
		var fault *lemma.Error
		if !errors.As(err, &fault) || fault.Kind != lemma.Invalid || fault.Fields[0].Pointer != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := pgtest.One[int](t, f.pool, `select count(*)::int from exports`); n != 1 {
		t.Errorf("%d exports", n)
	}
}

// SideEffects!NothingVisibleBeforeCommit, NoGarbageForEver, CommittedIsPublished: a worker
// crashes after each step. Until the commit nothing is visible, and its content is deleted;
// after it, any process publishes.
func TestAWorkerThatCrashesAfterAStep(t *testing.T) {
	steps := map[string]struct {
		crash     func(f fixture, j job)
		committed bool
		files     int
	}{
		"register": {func(fixture, job) {}, false, 0},
		"half of prepare": {func(f fixture, j job) {
			crashed := errors.New("crashed")
			_, err := f.Blobs.Prepare(f.t.Context(), j.attempt, func(w io.Writer) error { _, _ = w.Write([]byte("half")); return crashed })
			if !errors.Is(err, crashed) {
				f.t.Fatal(err)
			}
		}, false, 1},
		"prepare": {func(f fixture, j job) { _, err := f.prepare(f.t.Context(), j); f.must(err) }, false, 1},
		"commit": {func(f fixture, j job) {
			content, err := f.prepare(f.t.Context(), j)
			f.must(err)
			if held, err := f.commit(f.t.Context(), j, content); err != nil || !held {
				f.t.Fatal(held, err)
			}
		}, true, 1},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.suppress(10)
			x := f.create(NewExport{})
			j, found, err := f.claim(t.Context(), 0)
			if err != nil || !found {
				t.Fatal(found, err)
			}
			step.crash(f, j)
			if n := len(f.files()); n != step.files {
				t.Errorf("%d files after the step", n)
			}
			if _, err := f.Link(t.Context(), f.ws, x.ID, time.Minute); lemma.KindOf(err) != lemma.WrongStatus {
				t.Errorf("a link before it is published: %v", err)
			}
			f.clean() // deletes nothing of a running attempt
			if n := len(f.files()); n != step.files {
				t.Errorf("%d files are left of a running attempt", n)
			}
			if f.run() {
				t.Error("another worker writes beside a lease")
			}
			f.expireLeases()
			next := process(t, f.pool, f.dir, f.ws)
			if found := next.run(); found == step.committed {
				t.Errorf("taken over: %v", found)
			}
			f.must(next.PublishAll(t.Context()))
			next.clean()
			got := next.get(x.ID)
			if files := next.files(); got.Status != Completed || got.RowCount != 10 || len(files) != 1 {
				t.Errorf("%+v with the files %v", got, files)
			}
			if body, _ := next.download(x.ID); strings.Count(body, "\r\n") != 11 {
				t.Errorf("%q", body)
			}
			f.must(next.Delete(t.Context(), f.ws, x.ID))
			next.clean()
			if files := next.files(); len(files) != 0 {
				t.Errorf("files for ever: %v", files)
			}
		})
	}
}

// SideEffects!PublishedIsTheCommitted, CommittedOnce: a worker that lost its lease goes on.
// It neither commits nor changes what is committed, and leaves nothing for ever.
func TestAWorkerThatOutlivesItsLease(t *testing.T) {
	f := setup(t)
	f.suppress(10)
	x := f.create(NewExport{})
	late, _, err := f.claim(t.Context(), 0)
	f.must(err)
	f.expireLeases()
	f.run()
	whole, _ := f.download(x.ID)
	content, err := f.Blobs.Prepare(t.Context(), late.attempt, func(w io.Writer) error { _, err := w.Write([]byte("late")); return err })
	f.must(err)
	if held, err := f.commit(t.Context(), late, content); err != nil || held {
		t.Errorf("committed without a lease: %v, %v", held, err)
	}
	if body, _ := f.download(x.ID); body != whole {
		t.Errorf("the committed content changed to %q", body)
	}
	f.clean()
	if got := f.get(x.ID); len(f.files()) != 1 || got.Status != Completed || got.RowCount != 10 {
		t.Errorf("%+v with %v", got, f.files())
	}
}

// Content that a suspended worker stores after its attempt was cleaned is deleted a day later.
func TestContentIsDeletedTwice(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	late, _, err := f.claim(t.Context(), 0)
	f.must(err)
	_, err = f.Cancel(t.Context(), f.ws, x.ID)
	f.must(err)
	f.clean()
	_, err = f.Blobs.Prepare(t.Context(), late.attempt, func(w io.Writer) error { _, err := w.Write([]byte("late")); return err })
	f.must(err)
	f.clean()
	if len(f.files()) != 1 {
		t.Fatal("the test stores nothing")
	}
	pgtest.Exec(t, f.pool, `update blobs set ended_at = ended_at - interval '25 hours', clean_at = clean_at - interval '25 hours'`)
	f.clean()
	if left := pgtest.One[int](t, f.pool, `select count(*)::int from blobs`); len(f.files()) != 0 || left != 0 {
		t.Errorf("%v and %d rows", f.files(), left)
	}
}
