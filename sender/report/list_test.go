package report

import (
	"strings"
	"testing"
)

func TestLongestArray(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		``: 0, `{}`: 0, `{"a":1,"b":2,"c":3}`: 0, `[]`: 1, `[1]`: 1, `[null,null,null]`: 3, `[{"a":1,"b":2},{}]`: 2,
		`{"events":[{},{},{}],"type":[1,2]}`: 3, `{"type":[1,2],"events":[{},{},{}]}`: 3, `[[1,2,3],[1]]`: 3, `[1,[1],[2],3,4]`: 5,
		`["a,b,c","\",[1,2,3,4]","\\",4]`: 4, `[[[[[1,2,3,4,5]]]]]`: 1, `]]],,,[1,2`: 2, `["`: 1, `[1,"\`: 2,
		"[" + strings.Repeat("{},", 9999) + "{}]": 10_000,
	} {
		if got := LongestArray([]byte(text)); got != want {
			t.Errorf("%.50s: %d, want %d", text, got, want)
		}
	}
}
