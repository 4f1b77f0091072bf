package graph

import (
	"testing"

	"github.com/google/uuid"

	"lemma/processors"
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
	for isSmall, kind := range map[bool]*processors.Processors{false: advancing, true: advancingSmall} {
		err = processorstest.Waits(t, kind, workspace, func() error {
			turn, err := Advance(t.Context(), workspace, isSmall)
			if err != nil {
				t.Error(err)
			}
			defer turn.Leave()
			_, err = Compile([]byte(`{}`), Flow{WorkspaceID: workspace}, Facts{Turn: turn})
			return err
		})
		if err == nil {
			t.Error("an empty definition compiles")
		}
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
