package chaos

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the program, built once for all tests. The sources of the module are
// read, so that `go test` knows them for an input and answers nothing out of its
// cache when they have changed: what of them the tests do not call themselves is
// not in the test's own binary.
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

// worker is a `lemma work` process.
type worker struct {
	t     *testing.T
	cmd   *exec.Cmd
	said  *output
	ended chan struct{}
}

// hurried are times that are short enough to wait for.
var hurried = []string{
	"LEMMA_LEASE=2s", "LEMMA_CALL_TIMEOUT=1s", "LEMMA_REAP_EVERY=300ms", "LEMMA_SWEEP_EVERY=500ms", "LEMMA_SOURCE_TIMEOUT=3s",
	"LEMMA_SEND_WORKERS=4", "LEMMA_MAX_WINDOW=50", "LEMMA_ALLOW_PRIVATE_SOURCES=true", "LEMMA_ALLOW_PRIVATE_PROVIDERS=true", "LEMMA_LOG_LEVEL=info",
}

// patient is for tests in which no lease may run out, however busy the machine is.
var patient = []string{"LEMMA_LEASE=10s", "LEMMA_CALL_TIMEOUT=3s"}

// unhurried gives the mail server half a minute for each answer, and workers
// settings that leave as much: for tests in which nothing may be left in doubt,
// however busy the machine is.
func (h *house) unhurried() []string {
	h.t.Helper()
	h.provider = h.newProvider(30)
	return []string{"LEMMA_LEASE=3m", "LEMMA_CALL_TIMEOUT=45s"}
}

// work starts a worker; settings overrule the hurried ones.
func (h *house) work(settings ...string) *worker {
	h.t.Helper()
	file, err := binary()
	h.must(err)
	w := &worker{t: h.t, cmd: exec.Command(file, "work"), said: &output{}, ended: make(chan struct{})}
	w.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + h.dsn, "LEMMA_SECRET_KEY=" + h.key}, append(hurried, settings...)...)
	w.cmd.Stdout, w.cmd.Stderr = w.said, w.said
	w.cmd.SysProcAttr = ourDeath()
	started := make(chan error)
	go w.supervise(started)
	h.must(<-started)
	h.t.Cleanup(w.bury)
	return w
}

// startWorkers starts n of them and waits until they work.
func (h *house) startWorkers(n int, settings ...string) []*worker {
	h.t.Helper()
	all := make([]*worker, n)
	for i := range all {
		all[i] = h.work(settings...)
	}
	for _, w := range all {
		h.until(20*time.Second, "a worker works", func() bool { return strings.Contains(w.said.String(), "msg=working") || w.isGone() })
	}
	return all
}

// supervise lives on one thread as long as the process does, since the kernel
// sends the death signal when the thread that started a process ends.
func (w *worker) supervise(started chan<- error) {
	runtime.LockOSThread()
	err := w.cmd.Start()
	started <- err
	if err == nil {
		_ = w.cmd.Wait() // exitCode tells
		close(w.ended)
	}
}

func (w *worker) signal(s syscall.Signal) { _ = w.cmd.Process.Signal(s) } // it may be gone

// kill is kill -9, and returns when the process is gone.
func (w *worker) kill() {
	w.signal(syscall.SIGKILL)
	<-w.ended
}

// freeze stops the process where it stands; thaw lets it go on.
func (w *worker) freeze() { w.signal(syscall.SIGSTOP) }
func (w *worker) thaw()   { w.signal(syscall.SIGCONT) }

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

// exitCode of a process that is gone; -1 when a signal ended it.
func (w *worker) exitCode() int { return w.cmd.ProcessState.ExitCode() }

// bury ends the process with its test, and shows its last words when that failed.
func (w *worker) bury() {
	w.kill()
	if w.t.Failed() {
		w.t.Logf("worker %d ended with %v, and said at last:\n%s", w.cmd.Process.Pid, w.cmd.ProcessState, w.said.end(12))
	}
}

// output keeps what a process says.
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
