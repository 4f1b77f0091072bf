// Package postgres starts a private Postgres cluster from the binaries of the
// machine, for development, benchmarks and tests.
//
// Other users cannot connect to it: it has a unix socket in a folder of mode 0700,
// and no TCP. It ends with the process that started it, even if that is killed. The
// data folder is either complete or does not exist.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// User is the superuser of every cluster made here.
const User = "postgres"

// Options are the options of a cluster.
type Options struct {
	// Dir is the folder of the data, the socket and the log. It is created if missing and
	// owned by the user that Postgres runs as; see Cluster.Moved.
	Dir     string
	Bin     string // folder of the Postgres binaries; empty: searched by Find
	Durable bool   // survives a crash of the machine: fsync on, sizes for real work. Off: for tests

	Connections int // of a durable cluster, at most; 200 when 0
}

// Cluster is a running, or stopped, Postgres.
type Cluster struct {
	// Moved is the reason why the cluster is not in Options.Dir, and its folder; empty if it is there.
	Moved string

	o      Options
	bin    Binaries
	run    account
	socket string // folder of the socket
	lock   *os.File
	server *server // nil while stopped
}

// Start makes the data folder if there is none and starts a Postgres on it.
// ctx bounds the start alone; Stop ends the cluster. A second Start on a
// folder that is in use fails.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	run, err := serverAccount()
	if err != nil {
		return nil, err
	}
	c := &Cluster{o: o, run: run}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", o.Dir, err)
	}
	c.o.Dir, c.Moved = run.homeFor(dir)
	if c.bin, err = Find(o.Bin, dataVersion(c.data())); err != nil {
		return nil, err
	}
	if err := run.takeFolder(c.o.Dir); err != nil {
		return nil, err
	}
	if c.socket, err = socketFolder(run, c.o.Dir); err != nil {
		return nil, err
	}
	return c, c.Start(ctx)
}

// Start starts a stopped cluster again. After Crash it recovers first.
func (c *Cluster) Start(ctx context.Context) error {
	if c.server != nil {
		return errors.New("start postgres: it is running")
	}
	if err := c.takeLock(); err != nil {
		return err
	}
	err := c.initialize(ctx)
	if err == nil {
		c.server, err = c.launch(ctx)
	}
	if err != nil {
		c.unlock()
	}
	return err
}

// DSN is the DSN of a database for the superuser.
func (c *Cluster) DSN(database string) string { return c.DSNAs(User, "", database) }

// DSNAs is the DSN of a database for another user. The cluster does not check the
// password.
func (c *Cluster) DSNAs(user, password, database string) string {
	account := url.User(user)
	if password != "" {
		account = url.UserPassword(user, password)
	}
	u := url.URL{Scheme: "postgres", User: account, Path: "/" + database, RawQuery: "host=" + url.QueryEscape(c.socket)}
	return u.String()
}

// PID is the postmaster's process id, 0 while the cluster is stopped.
func (c *Cluster) PID() int {
	if c.server == nil {
		return 0
	}
	return c.server.cmd.Process.Pid
}

// Version is the major version of Postgres.
func (c *Cluster) Version() int { return c.bin.Version }

// Stop is Postgres's fast shutdown, and waits for its end. Stopping twice is harmless.
func (c *Cluster) Stop() error { return c.end(syscall.SIGINT) }

// Crash is Postgres's immediate shutdown, without a checkpoint. The next Start recovers.
func (c *Cluster) Crash() error { return c.end(syscall.SIGQUIT) }

func (c *Cluster) end(sig syscall.Signal) error {
	if c.server == nil {
		return nil
	}
	err := c.server.end(sig)
	c.server = nil
	c.unlock()
	return err
}

func (c *Cluster) data() string { return filepath.Join(c.o.Dir, "data") }

// takeLock prevents two processes from starting on one folder. Postgres would refuse
// as well, but also while its predecessor still stops.
func (c *Cluster) takeLock() error {
	f, err := os.OpenFile(filepath.Join(c.o.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the cluster: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return fmt.Errorf("the Postgres cluster in %s is in use by another process", c.o.Dir)
	}
	c.lock = f
	return nil
}

// unlock releases the lock before it closes the file: until its exec, a process that is
// being started has a copy of the file.
func (c *Cluster) unlock() {
	_ = syscall.Flock(int(c.lock.Fd()), syscall.LOCK_UN)
	c.lock.Close()
}

// initialize creates the data folder under another name first, so that an interrupted
// initdb leaves no incomplete data folder.
func (c *Cluster) initialize(ctx context.Context) error {
	switch found := dataVersion(c.data()); found {
	case c.bin.Version:
		return nil
	case 0:
	default:
		return fmt.Errorf("the data folder %s was made by Postgres %d, but the binaries in %s are version %d: "+
			"install Postgres %d or point LEMMA_PG_BIN at it, or remove the folder to begin anew",
			c.data(), found, c.bin.Dir, c.bin.Version, found)
	}
	fresh := c.data() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("clear the data folder: %w", err)
	}
	args := []string{"-D", fresh, "-U", User, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"}
	if !c.o.Durable {
		args = append(args, "--no-sync", "--wal-segsize=1")
	}
	runtime.LockOSThread() // for the death signal; see supervise
	defer runtime.UnlockOSThread()
	if out, err := c.command(ctx, "initdb", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLines(string(out), 5))
	}
	return os.Rename(fresh, c.data())
}

// command prepares one of the binaries to run as the cluster's user, without
// the settings for clients that the environment may hold.
func (c *Cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin.Dir, name), args...)
	cmd.Dir = c.o.Dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "PWD="+c.o.Dir)
	cmd.SysProcAttr = c.run.attributes()
	return cmd
}

// settings are the server's parameters.
func (c *Cluster) settings() []string {
	s := []string{
		"listen_addresses=", "unix_socket_directories=" + c.socket, "unix_socket_permissions=0700",
		"timezone=UTC", "log_timezone=UTC", "jit=off", "wal_level=minimal", "max_wal_senders=0",
		"synchronous_commit=on", "full_page_writes=on", "log_min_messages=warning",
	}
	if c.o.Durable {
		return append(s, "fsync=on", "max_connections="+strconv.Itoa(cmp.Or(c.o.Connections, 200)),
			"shared_buffers=256MB", "min_wal_size=256MB", "max_wal_size=4GB",
			"checkpoint_timeout=15min", "wal_compression=off", "random_page_cost=1.1")
	}
	return append(s, "fsync=off", "max_connections=500", "shared_buffers=64MB", "max_wal_size=256MB", "checkpoint_timeout=1h")
}

// pause waits briefly, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// lastLines keeps the end of a log for an error text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
