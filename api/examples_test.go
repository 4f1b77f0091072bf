package api

import (
	"encoding/json"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"lemma"
	"lemma/client"
	"lemma/flows/graph"
)

// definitionsIn collects the definitions of flows at any depth of an example.
func definitionsIn(at string, example any, found map[string]any) {
	switch e := example.(type) {
	case map[string]any:
		if e["start"] != nil && e["nodes"] != nil {
			found[at] = e
		}
		for name, value := range e {
			definitionsIn(at+"/"+name, value, found)
		}
	case []any:
		for _, value := range e {
			definitionsIn(at+"/-", value, found)
		}
	}
}

// examplesOf collects the examples of an operation's bodies.
func examplesOf(op *openapi3.Operation, found map[string]any) {
	if op.RequestBody == nil || op.RequestBody.Value.Content["application/json"] == nil {
		return
	}
	media := op.RequestBody.Value.Content.Get("application/json")
	definitionsIn(op.OperationID, media.Example, found)
	for name, example := range media.Examples {
		definitionsIn(op.OperationID+"/"+name, example.Value.Value, found)
	}
}

// An example of a flow can be published once its ids are replaced by ids of the
// workspace.
func TestExamplesOfFlowsCompile(t *testing.T) {
	t.Parallel()
	found := map[string]any{}
	for _, item := range contract().Paths.Map() {
		for _, op := range item.Operations() {
			examplesOf(op, found)
		}
	}
	for name, schema := range contract().Components.Schemas {
		definitionsIn(name, schema.Value.Example, found)
	}
	if len(found) < 4 {
		t.Errorf("only %d examples were found", len(found))
	}
	for at, definition := range found {
		raw, err := json.Marshal(definition)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := graph.Compile(raw, graph.Flow{FlowID: lemma.NewID()}, graph.Facts{}); err != nil {
			t.Errorf("%s: %v: %+v", at, err, faultsOf(err))
		}
	}
}

func faultsOf(err error) []client.Fault {
	if err == nil {
		return nil
	}
	p, _ := explain(err)
	return p.Errors
}
