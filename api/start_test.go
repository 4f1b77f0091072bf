package api

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// A process that does not serve the API starts without reading openapi.yaml, which takes longer
// than the rest of its start.
func TestTheContractIsReadWhenItIsNeeded(t *testing.T) {
	t.Parallel()
	start := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	start.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := start.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := regexp.MustCompile(`(?m)^init lemma/api @.* (\d+) bytes, `).FindSubmatch(out)
	if found == nil {
		t.Fatalf("no line of this package in %s", out)
	}
	if n, _ := strconv.Atoi(string(found[1])); n > 4<<20 {
		t.Errorf("the package allocates %d bytes before main", n)
	}
}
