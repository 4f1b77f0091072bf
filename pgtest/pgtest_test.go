package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain runs the tests. For TestClusterEndsWithItsProcess it instead starts a
// cluster and waits to be killed.
func TestMain(m *testing.M) {
	if os.Getenv("LEMMA_TEST_HANG") != "" {
		h, err := startShared()
		if err != nil {
			panic(err)
		}
		f, _ := processFolder()
		fmt.Fprintln(os.Stdout, h.cluster.PID(), f.path)
		select {}
	}
	os.Exit(m.Run())
}

func count(t *testing.T, dsn, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDatabasesAreNewAndSeparate(t *testing.T) {
	t.Parallel()
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			pool := DB(t)
			Workspace(t, pool)
			if n := count(t, DSN(pool), "select count(*) from workspaces"); n != 1 {
				t.Errorf("%d workspaces", n)
			}
		})
	}
}

func TestEmptyHasNoTables(t *testing.T) {
	t.Parallel()
	if n := count(t, DSN(Empty(t)), "select count(*) from pg_class where relnamespace = 'public'::regnamespace"); n != 0 {
		t.Errorf("%d tables", n)
	}
}

func TestDatabaseIsDroppedAfterItsTest(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("", func(t *testing.T) { name = DB(t).Config().ConnConfig.Database })
	if n := count(t, sharedCluster(t).cluster.DSN("postgres"), "select count(*) from pg_database where datname = '"+name+"'"); n != 0 {
		t.Errorf("database %s is still there", name)
	}
}

func TestClusterSurvivesACrash(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	pool := DBIn(t, c)
	Workspace(t, pool)
	if err := c.Crash(); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "select 1"); err == nil {
		t.Error("a crashed cluster answers")
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, DSN(pool), "select count(*) from workspaces"); n != 1 {
		t.Errorf("%d workspaces after the crash", n)
	}
}

func TestClusterEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	sharedCluster(t) // skips where there is no Postgres
	helper := exec.Command(os.Args[0])
	helper.Env = append(os.Environ(), "LEMMA_TEST_HANG=1")
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
		t.Fatal(err)
	}
	var pid int
	var dir string
	if _, err := fmt.Sscan(line, &pid, &dir); err != nil {
		t.Fatal(err)
	}
	Eventually(t, inTime, fmt.Sprintf("postmaster %d and folder %s are gone", pid, dir), func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist) && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
}

// A pipe that the garbage collector closes would end the cluster while its tests
// run.
func TestSweeperOutlivesGarbageCollection(t *testing.T) {
	t.Parallel()
	sharedCluster(t)
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("this machine does not list its processes")
	}
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); runtime.GC() {
		if !sweeperWaits(t) {
			t.Fatal("the sweeper has stopped waiting for this process")
		}
	}
}

// sweeperWaits reports whether a shell that this process started runs a cat.
func sweeperWaits(t *testing.T) bool {
	t.Helper()
	parents := map[string]string{} // pid -> parent, of all shells and cats
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var cats []string
	for _, file := range stats {
		raw, _ := os.ReadFile(file)
		var pid, name, state, parent string
		_, _ = fmt.Sscan(string(raw), &pid, &name, &state, &parent)
		parents[pid] = parent
		if name == "(cat)" && state != "Z" {
			cats = append(cats, pid)
		}
	}
	return slices.ContainsFunc(cats, func(pid string) bool { return parents[parents[pid]] == strconv.Itoa(os.Getpid()) })
}

func TestMachineWithoutPostgres(t *testing.T) {
	t.Parallel()
	run := func(env ...string) (string, error) {
		cmd := exec.Command(os.Args[0], "-test.run=TestEmptyHasNoTables", "-test.v")
		cmd.Env = append(os.Environ(), append(env, "LEMMA_PG_BIN="+t.TempDir())...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("LEMMA_TEST_REQUIRED="); err != nil || !strings.Contains(out, "SKIPPED, NOTHING WAS TESTED") {
		t.Errorf("without LEMMA_TEST_REQUIRED: %v: %s", err, out)
	}
	if out, err := run("LEMMA_TEST_REQUIRED=1"); err == nil || !strings.Contains(out, "no Postgres found") {
		t.Errorf("with LEMMA_TEST_REQUIRED=1: %v: %s", err, out)
	}
}
