package postgres

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is one postmaster, from its start to its end.
type server struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it is gone
}

// launch starts a postmaster and waits until it accepts connections. It
// starts it again while its predecessor still ends.
func (c *Cluster) launch(ctx context.Context) (*server, error) {
	const predecessor = `lock file "postmaster.pid" already exists`
	deadline := time.Now().Add(15 * time.Second)
	for {
		s, err := c.spawn()
		if err != nil {
			return nil, err
		}
		err = s.await(ctx, c.data())
		if err == nil {
			return s, nil
		}
		log, _ := os.ReadFile(c.logFile())
		if !strings.Contains(string(log), predecessor) || time.Now().After(deadline) {
			return nil, fmt.Errorf("%w; its log ends: %s", err, lastLines(string(log), 5))
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("wait for an earlier postgres to end: %w", err)
		}
	}
}

func (c *Cluster) logFile() string { return filepath.Join(c.o.Dir, "postgres.log") }

func (c *Cluster) spawn() (*server, error) {
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of postgres: %w", err)
	}
	defer log.Close()
	args := []string{"-D", c.data()}
	for _, s := range c.settings() {
		args = append(args, "-c", s)
	}
	s := &server{cmd: c.command(context.Background(), "postgres", args...), ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	started := make(chan error)
	go s.supervise(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	return s, nil
}

// supervise starts the process and waits for it. The kernel sends the death
// signal when the thread that started it ends, so that thread must live as
// long as the process does.
func (s *server) supervise(started chan<- error) {
	runtime.LockOSThread()
	err := s.cmd.Start()
	started <- err
	if err == nil {
		_ = s.cmd.Wait() // how it ended is in its log
		close(s.ended)
	}
}

// await reads the pid file, whose eighth line is "ready" when connections are accepted.
func (s *server) await(ctx context.Context, data string) error {
	for {
		if s.ready(filepath.Join(data, "postmaster.pid")) {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("postgres ended at its start: %s", s.cmd.ProcessState)
		case <-ctx.Done():
			_ = s.end(syscall.SIGQUIT)
			return fmt.Errorf("start postgres: %w", context.Cause(ctx))
		case <-time.After(3 * time.Millisecond):
		}
	}
}

func (s *server) ready(pidFile string) bool {
	raw, _ := os.ReadFile(pidFile)
	lines := strings.Split(string(raw), "\n")
	return len(lines) > 7 && lines[0] == strconv.Itoa(s.cmd.Process.Pid) && strings.TrimSpace(lines[7]) == "ready"
}

// end sends a signal and waits; after half a minute it kills the process.
func (s *server) end(sig syscall.Signal) error {
	for _, sig := range []syscall.Signal{sig, syscall.SIGQUIT, syscall.SIGKILL} {
		_ = s.cmd.Process.Signal(sig) // fails only when it is gone already
		select {
		case <-s.ended:
			return nil
		case <-time.After(30 * time.Second):
		}
	}
	return fmt.Errorf("stop postgres: process %d does not end", s.cmd.Process.Pid)
}
