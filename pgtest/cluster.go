package pgtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/dev/postgres"
	"lemma/migrations"
)

// shared is the cluster of the test process, with the template in it.
type shared struct {
	cluster *postgres.Cluster
	admin   *pgxpool.Pool
}

// startTime bounds the start of a cluster and the migration of its template.
const startTime = 5 * time.Minute

func sharedCluster(t testing.TB) *shared {
	t.Helper()
	h, err := startShared()
	check(t, err)
	return h
}

var startShared = sync.OnceValues(func() (*shared, error) {
	f, err := processFolder()
	if err != nil {
		return nil, err
	}
	c, err := startIn(f.path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	admin, err := pgxpool.New(ctx, c.DSN("postgres"))
	if err != nil {
		return nil, err
	}
	return &shared{cluster: c, admin: admin}, migrateTemplate(ctx, c, admin)
})

func migrateTemplate(ctx context.Context, c *postgres.Cluster, admin *pgxpool.Pool) error {
	if _, err := admin.Exec(ctx, "create database "+template+" template template0"); err != nil {
		return fmt.Errorf("create the template database: %w", err)
	}
	pool, err := pgxpool.New(ctx, c.DSN(template))
	if err != nil {
		return err
	}
	defer pool.Close() // a database with connections cannot be cloned
	return migrations.Up(ctx, pool)
}

func startIn(dir string) (*postgres.Cluster, error) {
	home, err := os.MkdirTemp(dir, "pg")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	return postgres.Start(ctx, postgres.Options{Dir: home, Bin: os.Getenv("LEMMA_PG_BIN")})
}

// folder is where all clusters of this process are.
type folder struct {
	path string
	// alive is the pipe that the sweeper reads. The reference keeps it open: the
	// garbage collector closes files without one.
	alive io.Closer
}

// processFolder makes the folder. Since a process can be killed at any time, a
// shell removes it. The shell waits for the end of a pipe, which is the end of
// this process, and then for the postmasters, which the kernel stops.
var processFolder = sync.OnceValues(func() (f folder, err error) {
	if f.path, err = os.MkdirTemp(fastFolder(), "lemma-test-"); err != nil {
		return f, err
	}
	if err := os.Chmod(f.path, 0o711); err != nil { // Postgres may run as another user
		return f, err
	}
	const wait = `trap "" INT TERM HUP; cat >/dev/null; n=0
while [ $n -lt 100 ] && ls "$0"/*/data/postmaster.pid >/dev/null 2>&1; do sleep 0.1; n=$((n+1)); done
rm -rf -- "$0"`
	sweeper := exec.Command("sh", "-c", wait, f.path)
	sweeper.Dir = "/"
	sweeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if f.alive, err = sweeper.StdinPipe(); err != nil {
		return f, err
	}
	return f, sweeper.Start()
})

// fastFolder is a folder in memory if that has enough space: cloning a database
// of some hundreds of files takes 30 ms there, and 500 ms on a slow disk.
// Otherwise it is empty, which is the default folder.
func fastFolder() string {
	const memory, needed = "/dev/shm", 2 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < needed {
		return ""
	}
	return memory
}
