package lemma_test

import (
	"errors"
	"strings"
	"testing"

	"lemma"
)

func TestCheckMetadata(t *testing.T) {
	t.Parallel()
	half := strings.Repeat("v", lemma.MaxMetadata/2)
	for name, c := range map[string]struct {
		m             map[string]string
		pointer, code string
	}{
		"none":     {nil, "", ""},
		"the most": {map[string]string{"a": half[1:], "b": half[1:]}, "", ""},
		"too much": {map[string]string{"a": half[1:], "b": half}, "/m", "too_large"},
		"a NUL":    {map[string]string{"a/b": "\x00"}, "/m/a~1b", "invalid"},
		"bad text": {map[string]string{"\xff": "x"}, "/m/\xff", "invalid"},
	} {
		fault, is := errors.AsType[*lemma.Error](lemma.CheckMetadata("/m", c.m))
		if is != (c.code != "") || is && (fault.Fields[0].Pointer != c.pointer || fault.Fields[0].Code != c.code) {
			t.Errorf("%s: %+v", name, fault)
		}
	}
}
