package chaos

import (
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"

	"lemma"
	"lemma/blobs"
	"lemma/exports"
	"lemma/links"
	"lemma/pgtest"
	"lemma/suppression"
)

// A process is killed at each step of an export. Nothing is visible before the commit,
// what another process publishes is whole, and no file stays for ever.
func TestExportsOfKilledProcesses(t *testing.T) {
	for name, open := range map[string]func(*testing.T) string{"folder": folderURL, "s3": bucketURL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := openExports(t, open(t))
			for _, step := range []string{"register", "prepare", "commit", "publish"} {
				x.killedAt(step)
			}
			if os.Getenv("LEMMA_CHAOS_KILLS") != "" { // a process cleans after a minute
				x.killedCleaner()
			}
		})
	}
}

// exportRows are the rows of the exports.
const exportRows = 2_000

// stops are places in which a process waits for the lock that has their name.
const stops = `
	create function stop() returns trigger language plpgsql as $$
		begin perform pg_advisory_xact_lock(hashtext(tg_argv[0])); return new; end $$;
	create trigger stop_register before insert on blobs for each row execute function stop('register');
	create trigger stop_commit before update on blobs for each row when (new.status = 'committed') execute function stop('commit');
	create trigger stop_publish before update on blobs for each row when (new.status = 'published') execute function stop('publish');
	create trigger stop_clean before update on blobs for each row when (new.clean_at = new.ended_at + interval '24 hours')
		execute function stop('clean')`

// exporting is an installation with a store, and the exports of this process.
type exporting struct {
	*env
	*exports.Exports
	store    blobs.Store
	settings []string
}

func folderURL(t *testing.T) string { return "file://" + t.TempDir() }

const s3Key, s3Secret = "access", "secret-of-the-test"

// bucketURL is a bucket of an S3 server, which checks signatures.
func bucketURL(t *testing.T) string {
	kept := s3mem.New()
	if err := kept.CreateBucket(t.Context(), "lemma"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(gofakes3.New(kept, gofakes3.WithV4Auth(map[string]string{s3Key: s3Secret})).Server())
	t.Cleanup(s.Close)
	return "s3://lemma/exports?region=us-east-1&endpoint=" + s.URL
}

func openExports(t *testing.T, url string) *exporting {
	h := setup(t)
	store, err := blobs.OpenURL(url, blobs.Credentials{AccessKey: s3Key, SecretKey: s3Secret})
	h.Must(err)
	h.Must(suppression.New(h.Pool).Seed(t.Context(), h.Workspace, exportRows))
	h.Exec(stops)
	kept := blobs.New(blobs.Deps{Pool: h.Pool, Store: store, At: blobs.Location(url)})
	x := exports.New(exports.Deps{Pool: h.Pool, Links: links.New(h.Pool, pgtest.Box(t), nil), Blobs: kept}, exports.Config{})
	return &exporting{h, x, store, []string{"LEMMA_BLOBS=" + url, "LEMMA_S3_ACCESS_KEY=" + s3Key, "LEMMA_S3_SECRET_KEY=" + s3Secret}}
}

// killedAt kills a process in a step of an export, and lets another one go on.
func (x *exporting) killedAt(step string) {
	x.t.Helper()
	continueStep := x.stopAt(step)
	made, err := x.Create(x.t.Context(), x.Workspace, exports.NewExport{ID: lemma.NewID(), Type: "suppressions", Format: "csv"})
	x.Must(err)
	dying := x.work(x.settings...)
	x.waitForLock("a process is at " + step)
	dying.kill()
	if _, err := x.Link(x.t.Context(), x.Workspace, made.ID, time.Minute); lemma.KindOf(err) != lemma.WrongStatus {
		x.t.Errorf("killed at %s: it has a link: %v", step, err)
	}
	x.endSessions()
	continueStep()
	x.Exec(`update blobs set lease_until = now() - interval '1 second' where status = 'registered'`)
	next := x.work(x.settings...)
	x.published(step, made.ID)
	next.kill()
	x.Must(x.Delete(x.t.Context(), x.Workspace, made.ID))
	x.nothingIsLeft(step)
}

// stopAt makes processes wait in a step until continueStep is called.
func (x *exporting) stopAt(step string) (continueStep func()) {
	x.t.Helper()
	if step == "prepare" {
		return x.lock(`lock table suppressions in access exclusive mode`)
	}
	return x.lock(`select pg_advisory_xact_lock(hashtext($1))`, step)
}

// killedCleaner kills a process that has deleted a file and not recorded that.
func (x *exporting) killedCleaner() {
	x.t.Helper()
	made, err := x.Create(x.t.Context(), x.Workspace, exports.NewExport{ID: lemma.NewID(), Type: "suppressions", Format: "csv"})
	x.Must(err)
	_, err = x.RunOnce(x.t.Context())
	x.Must(err)
	x.Must(x.Delete(x.t.Context(), x.Workspace, made.ID))
	continueStep := x.stopAt("clean")
	dying := x.work(x.settings...)
	x.eventually("a process cleans", func() bool {
		return x.Count(`select count(*) from pg_locks where not granted and locktype = 'advisory'`) > 0
	})
	dying.kill()
	x.endSessions()
	continueStep()
	x.nothingIsLeft("clean")
}

// published waits until an export is completed, and reads its file.
func (x *exporting) published(step string, id uuid.UUID) {
	x.t.Helper()
	x.eventually("an export killed at "+step+" is completed", func() bool {
		x.Exec(`update exports set retry_at = now() where retry_at > now()`)
		found, err := x.Get(x.t.Context(), x.Workspace, id)
		return err == nil && found.Status == exports.Completed
	})
	if n := x.Count(`select count(*) from blobs where owner_id = $1 and status = 'published'`, id); n != 1 {
		x.t.Errorf("killed at %s: %d files are published", step, n)
	}
	name := pgtest.One[string](x.t, x.Pool, `select name from blobs where owner_id = $1 and status = 'published'`, id)
	file, err := x.store.Open(x.t.Context(), name, 0)
	x.Must(err)
	defer file.Close()
	body, err := io.ReadAll(file)
	x.Must(err)
	if lines := strings.Count(string(body), "\r\n"); lines != exportRows+1 {
		x.t.Errorf("killed at %s: the file has %d lines", step, lines)
	}
}

// nothingIsLeft cleans now and a day later: then neither the store nor the table has an
// attempt.
func (x *exporting) nothingIsLeft(step string) {
	x.t.Helper()
	names := pgtest.Column[string](x.t, x.Pool, `select name from blobs`)
	x.Must(x.Clean(x.t.Context()))
	for _, name := range names {
		if size, err := x.store.Size(x.t.Context(), name); err == nil {
			x.t.Errorf("killed at %s: %s stays with %d bytes", step, name, size)
		}
	}
	x.Exec(`update blobs set ended_at = ended_at - interval '25 hours', clean_at = clean_at - interval '25 hours'`)
	x.Must(x.Clean(x.t.Context()))
	if n := x.Count(`select count(*) from blobs`); n != 0 || len(names) == 0 {
		x.t.Errorf("killed at %s: %d of %d attempts stay for ever", step, n, len(names))
	}
}
