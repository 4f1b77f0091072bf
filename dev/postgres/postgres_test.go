package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain turns the test binary into a process that starts a cluster and
// waits to be killed, when TestEndsWithItsProcess asks for that.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LEMMA_TEST_CLUSTER_DIR"); dir != "" {
		c, err := Start(context.Background(), Options{Dir: dir})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(c.PID())
		select {}
	}
	os.Exit(m.Run())
}

// folder is a short path that the user of Postgres can reach, unlike t.TempDir.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lemma-pg-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// open is a folder that all users may enter.
func open(t *testing.T) string {
	t.Helper()
	dir := folder(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), o)
	if errors.Is(err, ErrNotFound) && os.Getenv("LEMMA_TEST_REQUIRED") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// ask runs a query that returns one text.
func ask(t *testing.T, c *Cluster, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var answer string
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func run(t *testing.T, c *Cluster, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestStopAndCrashKeepWhatWasCommitted(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Dir: folder(t), Durable: true})
	run(t, c, "create table kept as select 'one' as word")
	for name, end := range map[string]func() error{"stop": c.Stop, "crash": c.Crash} {
		run(t, c, "update kept set word = '"+name+"'")
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if _, err := pgx.Connect(t.Context(), c.DSN("postgres")); err == nil {
			t.Fatalf("%s: still takes connections", name)
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, c, "select word from kept"); got != name {
			t.Errorf("after %s the table contains %q", name, got)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, durable := range map[string]bool{"durable": true, "throwaway": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, Options{Dir: folder(t), Durable: durable})
			want := map[bool]string{true: "on", false: "off"}[durable]
			got := ask(t, c, `select concat_ws(' ', current_setting('fsync'), current_setting('synchronous_commit'),
				current_setting('full_page_writes'),
				current_setting('server_encoding'), current_setting('timezone'),
				(select datcollate from pg_database where datname = 'postgres'),
				'[' || current_setting('listen_addresses') || ']')`)
			if got != want+" on on UTF8 UTC C []" {
				t.Errorf("settings are %q", got)
			}
		})
	}
}

func TestSecondStartIsRefused(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Dir: folder(t)})
	_, err := Start(t.Context(), Options{Dir: c.o.Dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second start: %v", err)
	}
	if got := ask(t, c, "select 'alive'"); got != "alive" {
		t.Error("the first cluster suffered")
	}
}

func TestEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	start(t, Options{Dir: folder(t)}) // skips where there is no Postgres
	helper := exec.Command(os.Args[0])
	helper.Env = append(os.Environ(), "LEMMA_TEST_CLUSTER_DIR="+dir)
	out, err := helper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = helper.Process.Kill()
	_ = helper.Wait()
	if err != nil {
		t.Fatalf("helper: %v", err)
	}
	c := start(t, Options{Dir: dir}) // while the orphan is still on its way out
	if got := fmt.Sprint(c.PID()); got == strings.TrimSpace(line) {
		t.Errorf("the killed process's postmaster %s lives on", got)
	}
	ask(t, c, "select 'alive'")
}

func TestOtherVersionIsRefused(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9.6\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{Dir: dir})
	if errors.Is(err, ErrNotFound) {
		t.Skip(err)
	}
	if err == nil || !strings.Contains(err.Error(), "made by Postgres 9") || !strings.Contains(err.Error(), "install Postgres 9") {
		t.Errorf("start on a folder of 9.6: %v", err)
	}
}

func TestInterruptedInitdbIsDoneAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	ask(t, start(t, Options{Dir: dir}), "select 'alive'")
}

func TestLongPathHasItsSocketElsewhere(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(open(t), strings.Repeat("long/", 25))
	c := start(t, Options{Dir: dir})
	t.Cleanup(func() { os.RemoveAll(c.socket) })
	ask(t, c, "select 'alive'")
	info, err := os.Stat(c.socket)
	if err != nil || info.Mode().Perm() != 0o700 || strings.HasPrefix(c.socket, dir) {
		t.Errorf("socket folder %s: %v, %v", c.socket, info, err)
	}
}

func TestFolderThatTheServersUserCannotEnter(t *testing.T) {
	t.Parallel()
	if c := start(t, Options{Dir: filepath.Join(open(t), "project", ".lemma")}); c.Moved != "" {
		t.Errorf("moved without need: %s", c.Moved)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root has a home that the server's user cannot enter")
	}
	closed := folder(t) // mode 0700
	c := start(t, Options{Dir: filepath.Join(closed, ".lemma")})
	t.Cleanup(func() { c.Stop(); os.RemoveAll(c.o.Dir) })
	if strings.HasPrefix(c.o.Dir, closed) || !strings.Contains(c.Moved, closed) || !strings.Contains(c.Moved, c.o.Dir) {
		t.Errorf("moved to %s: %s", c.o.Dir, c.Moved)
	}
	ask(t, c, "select 'alive'")
}

func TestAFolderOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	dir := open(t)
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{Dir: filepath.Join(dir, "link")})
	if errors.Is(err, ErrNotFound) {
		t.Skip(err)
	}
	if err == nil || !strings.Contains(err.Error(), "not a folder of ours") {
		t.Errorf("start in a planted link: %v", err)
	}
}

func TestFindNamesTheRemedies(t *testing.T) {
	t.Parallel()
	_, err := Find(t.TempDir(), 0)
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "LEMMA_PG_BIN") {
		t.Errorf("empty folder: %v", err)
	}
	text := noneFound([]string{"/old is version 12, and 14 is needed"}).Error()
	for _, way := range []string{"apt-get install postgresql", "LEMMA_PG_BIN", "DATABASE_URL", "version 12"} {
		if !strings.Contains(text, way) {
			t.Errorf("the error does not mention %s: %s", way, text)
		}
	}
}

func TestCancelledStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	c := start(t, Options{Dir: dir})
	pid := c.PID()
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d is alive after stop", pid)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if err := c.Start(ctx); err == nil {
		t.Fatal("start with an ended context succeeded")
	}
	if err := c.Start(t.Context()); err != nil {
		t.Errorf("start after a cancelled one: %v", err)
	}
}
