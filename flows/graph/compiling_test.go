package graph

import (
	"testing"

	"github.com/google/uuid"

	"lemma/processors/processorstest"
)

// Definitions are compiled on the processors that their workspace leaves to others.
func TestCompilationsWaitForAProcessor(t *testing.T) {
	t.Parallel()
	workspace := uuid.New()
	err := processorstest.Waits(t, compiling, workspace, func() error {
		_, err := Compile([]byte(`{}`), Flow{WorkspaceID: workspace}, Facts{})
		return err
	})
	if err == nil {
		t.Error("an empty definition compiles")
	}
	err = processorstest.Waits(t, compiling, workspace, func() error {
		_, err := Decode(workspace, []byte(`{"start":"x"}`))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	err = processorstest.Waits(t, compiling, workspace, func() error {
		_, err := Compare(workspace, []byte(`{}`), []byte(`{"start":"x"}`))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
