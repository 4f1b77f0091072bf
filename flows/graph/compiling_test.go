package graph

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Definitions are compiled on the processors that their workspace leaves to others.
func TestCompilationsWaitForAProcessor(t *testing.T) {
	t.Parallel()
	workspace := uuid.New()
	var leave []func()
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		leave = append(leave, compiling.Enter(workspace))
	}
	done := make(chan error, 1)
	go func() { _, err := Compile([]byte(`{}`), Flow{WorkspaceID: workspace}, Facts{}); done <- err }()
	select {
	case <-done:
		t.Fatal("it does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	for _, l := range leave {
		l()
	}
	if err := <-done; err == nil {
		t.Error("an empty definition compiles")
	}
}
