package client

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const program = `package main

import (
	"fmt"

	"lemma/client"
)

func main() {
	c, err := client.New("https://lemma.example.com", "lk_key", client.Tries(3))
	fmt.Println(c != nil, err)
}
`

// Another module can use the package as its doc describes, with no dependencies beyond
// those of this module.
func TestAnotherModuleCompiles(t *testing.T) {
	t.Parallel()
	ours, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	theirs := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module shop.example/reminders\n\ngo 1.26\n\nrequire lemma v0.0.0\n\nreplace lemma => " + ours + "\n",
		"go.sum":  string(sums),
		"main.go": program,
	} {
		if err := os.WriteFile(filepath.Join(theirs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", ".")
	run.Dir, run.Env = theirs, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off")
	if out, err := run.CombinedOutput(); err != nil || string(out) != "true <nil>\n" {
		t.Errorf("%v: %s", err, out)
	}
}
