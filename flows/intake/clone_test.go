package intake

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unsafe"

	"lemma"
	"lemma/audience"
	"lemma/flows/graph"
)

// A row of an audience shares the memory of many rows. A chunk keeps thousands of profile
// keys, and must not keep that memory.
func TestAChunkKeepsNoMemoryOfItsRows(t *testing.T) {
	t.Parallel()
	raw := json.RawMessage(`{"triggers":[{"type":"event","event":"e"}],"recurrence":{"policy":"once"},"start":"end",
		"nodes":{"end":{"type":"exit"}}}`)
	g, err := graph.Compile(raw, graph.Flow{WorkspaceID: lemma.NewID(), FlowID: lemma.NewID()}, graph.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	rows := "profile" + strings.Repeat("x", 1000)
	key := rows[:len("profile")]
	polled := &chunk{poll: poll{start: time.Now()}, graph: g, done: &polled{}, firsts: newFirsts()}
	polled.add(audience.Row{Key: key, Payload: rows})
	forecast := &forecastChunk{graph: g, now: time.Now(), firsts: newFirsts()}
	if err := forecast.add(t.Context(), audience.Row{Key: key, Payload: rows}); err != nil {
		t.Fatal(err)
	}
	for name, kept := range map[string]string{"a poll": polled.pending[0].profile, "a forecast": forecast.pending[0].ProfileKey} {
		if kept != key || unsafe.StringData(kept) == unsafe.StringData(rows) {
			t.Errorf("%s keeps %q, a part of its rows", name, kept)
		}
	}
}
