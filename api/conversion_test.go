package api

import (
	"strings"

	"github.com/google/go-cmp/cmp"
)

// checkConversion sets and removes the conversion of a draft.
func (b *bundle) checkConversion(path string) {
	b.T.Helper()
	conversion := object{"event": strings.Repeat("買", 100), "within": "P7D"}
	if diff := cmp.Diff(conversion, b.do("PATCH", path, object{"conversion": conversion}).is(200).json["conversion"]); diff != "" {
		b.T.Error("conversion", diff)
	}
	for pointer, bad := range map[string]object{
		"/conversion/within": {"event": "bought", "within": "a week"}, "/conversion/event": {"event": "", "within": "P7D"},
	} {
		if got := b.do("PATCH", path, object{"conversion": bad}).is(422); got.problem.Errors[0].Pointer != pointer {
			b.T.Errorf("%v: %s", bad, got.body)
		}
	}
	b.do("PATCH", path, object{"conversion": object{"event": strings.Repeat("a", 101), "within": "P7D"}}).
		fault(422, "/conversion/event", "too_long")
	b.do("PATCH", path, object{"conversion": object{"event": "bought", "within": "P91D"}}).is(422)
	if got := b.do("PATCH", path, object{"conversion": nil}).is(200); got.json["conversion"] != nil {
		b.T.Errorf("the conversion stayed: %s", got.body)
	}
}
