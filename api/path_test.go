package api

import (
	"strings"
	"testing"
)

func TestEveryIDInAPathHasItsResource(t *testing.T) {
	s := &server{Options: Options{}.withDefaults()}
	for _, r := range s.routes() {
		of := collection(r.path)
		if _, known := resources[of]; strings.Contains(r.path, "{id}") && !known && of != "notifications" {
			t.Errorf("%s: resources has no %s, so that its handler gets no id", r.path, of)
		}
	}
}
