package flows_test

import (
	"context"
	"testing"

	"lemma/flows"
	"lemma/flows/flowstest"
)

var bg = context.Background()

// bundle is the fixture with the helpers of this package's tests.
type bundle struct{ *flowstest.Fixture }

func setup(t *testing.T, n int, change ...func(*flows.Config)) *bundle {
	t.Helper()
	return &bundle{Fixture: flowstest.New(t, n, change...)}
}
