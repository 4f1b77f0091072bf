// Package processorstest tests that a computation takes a processor of its workspace.
package processorstest

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/processors"
)

// Take takes all processors that a workspace may have, until leave.
func Take(p *processors.Processors, workspace uuid.UUID) (leave func()) {
	var all []func()
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		all = append(all, p.Enter(workspace))
	}
	return func() {
		for _, l := range all {
			l()
		}
	}
}

// Waits checks that a computation of a workspace waits while the workspace has all its processors, and
// returns its error once they are free.
func Waits(t *testing.T, p *processors.Processors, workspace uuid.UUID, compute func() error) error {
	t.Helper()
	leave := Take(p, workspace)
	done := make(chan error, 1)
	go func() { done <- compute() }()
	select {
	case err := <-done:
		leave()
		t.Fatalf("it does not wait for a processor: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	leave()
	return <-done
}
