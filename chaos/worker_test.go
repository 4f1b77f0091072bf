package chaos

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// binary is the program, built once for all tests. The sources of the module are
// read, so that `go test` caches no result when they have changed.
var binary = sync.OnceValues(func() (string, error) {
	if err := filepath.WalkDir("..", readSource); err != nil {
		return "", err
	}
	file := filepath.Join(scratch, "lemma")
	if out, err := exec.Command("go", "build", "-o", file, "lemma/cmd/lemma").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build lemma: %w: %s", err, out)
	}
	return file, nil
})

func readSource(path string, entry fs.DirEntry, err error) error {
	name := entry.Name()
	switch {
	case err != nil:
		return err
	case entry.IsDir() && len(name) > 2 && name[0] == '.':
		return filepath.SkipDir
	case strings.HasSuffix(name, ".sql"), strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
		_, err = os.ReadFile(path)
	}
	return err
}

// worker is a `lemma work` or `lemma serve` process.
type worker struct {
	env    *env
	cmd    *exec.Cmd
	output *output
	ended  chan struct{}
}

// reapEvery is how often workers read the leases that have ended.
const reapEvery = 600 * time.Millisecond

// usual are the settings of workers. Leases and timeouts do not end during a test: see
// expireKilled. What is done repeatedly is done soon.
var usual = []string{
	"LEMMA_LEASE=15m", "LEMMA_CALL_TIMEOUT=2m", "LEMMA_REAP_EVERY=" + reapEvery.String(), "LEMMA_SWEEP_EVERY=1s", "LEMMA_SOURCE_TIMEOUT=10m",
	"LEMMA_SEND_WORKERS=4", "LEMMA_MAX_WINDOW=50", "LEMMA_ALLOW_PRIVATE_SOURCES=true", "LEMMA_ALLOW_PRIVATE_PROVIDERS=true",
	"LEMMA_ALLOW_PRIVATE_WEBHOOKS=true", "LEMMA_LOG_LEVEL=info", "LEMMA_PUBLIC_URL=http://127.0.0.1:8080",
}

// shortLeases is for tests of leases and calls that end because time has passed.
var shortLeases = []string{"LEMMA_LEASE=2s", "LEMMA_CALL_TIMEOUT=1s"}

// work starts a worker; settings override usual.
func (h *env) work(settings ...string) *worker {
	h.t.Helper()
	return h.start("work", settings...)
}

// start starts a process with a command of the program; settings override usual.
func (h *env) start(command string, settings ...string) *worker {
	h.t.Helper()
	file, err := binary()
	h.Must(err)
	w := &worker{env: h, cmd: exec.Command(file, command), output: &output{}, ended: make(chan struct{})}
	w.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + h.dsn, "LEMMA_SECRET_KEY=" + h.Key},
		append(slices.Clip(usual), settings...)...)
	w.cmd.Stdout, w.cmd.Stderr = w.output, w.output
	w.cmd.SysProcAttr = endWithParent()
	started := make(chan error)
	go w.supervise(started)
	h.Must(<-started)
	h.t.Cleanup(w.stop)
	return w
}

// startWorkers starts n workers and waits until they work.
func (h *env) startWorkers(n int, settings ...string) []*worker {
	h.t.Helper()
	all := make([]*worker, n)
	for i := range all {
		all[i] = h.work(settings...)
	}
	h.areWorking(all)
	return all
}

// startAgain starts a worker for each one that has exited.
func (h *env) startAgain(workers []*worker, settings ...string) {
	h.t.Helper()
	for i, w := range workers {
		if w.isGone() {
			workers[i] = h.work(settings...)
		}
	}
}

func (h *env) areWorking(workers []*worker) {
	h.t.Helper()
	for _, w := range workers {
		h.eventually("a worker works", func() bool { return strings.Contains(w.output.String(), "msg=working") || w.isGone() })
		if w.isGone() {
			h.t.Fatalf("a worker has exited: %v", w.cmd.ProcessState)
		}
	}
}

// supervise keeps its thread until the process exits, since the kernel sends the death
// signal when the thread that started a process ends.
func (w *worker) supervise(started chan<- error) {
	runtime.LockOSThread()
	err := w.cmd.Start()
	started <- err
	if err == nil {
		_ = w.cmd.Wait() // exitCode reports it
		close(w.ended)
	}
}

func (w *worker) signal(s syscall.Signal) { _ = w.cmd.Process.Signal(s) } // it may have exited

// kill is kill -9, and returns when the process has exited.
func (w *worker) kill() {
	w.end()
	w.env.killed.add(w)
}

func (w *worker) end() {
	w.signal(syscall.SIGKILL)
	<-w.ended
}

func killAll(workers []*worker) {
	for _, w := range workers {
		w.kill()
	}
}

// freeze stops the process; thaw continues it.
func (w *worker) freeze() { w.signal(syscall.SIGSTOP) }
func (w *worker) thaw()   { w.signal(syscall.SIGCONT) }

// freezeIdle freezes the only worker while it has no transaction open: the locks of one would
// hold others until Postgres ends it, longer than a call waits for its answer.
func (h *env) freezeIdle(w *worker) {
	h.t.Helper()
	h.eventually("the worker is frozen without a transaction", func() bool {
		w.freeze()
		if h.Count(`select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null and backend_type = 'client backend'`) == 0 {
			return true
		}
		w.thaw()
		return false
	})
}

// shutDown is SIGTERM.
func (w *worker) shutDown() { w.signal(syscall.SIGTERM) }

func (w *worker) isGone() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// exitCode is that of an exited process; -1 if a signal ended it.
func (w *worker) exitCode() int { return w.cmd.ProcessState.ExitCode() }

// stop kills the process at the end of its test, and logs its last output if that failed.
func (w *worker) stop() {
	w.end()
	if t := w.env.t; t.Failed() {
		t.Logf("worker %d ended with %v; its last output:\n%s", w.cmd.Process.Pid, w.cmd.ProcessState, w.output.end(12))
	}
}

// output is the output of a process.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

func (o *output) end(lines int) string {
	all := strings.Split(strings.TrimSpace(o.String()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
