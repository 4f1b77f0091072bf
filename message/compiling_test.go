package message

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma/processors/processorstest"
)

// Messages with many links are tracked on such processors, too; those with few need none.
func TestManyLinksWaitForAProcessor(t *testing.T) {
	t.Parallel()
	workspace := uuid.New()
	tracked := func(links int) func() error {
		c, err := Compile(workspace, Content{Subject: "s", HTML: strings.Repeat(`<a href="https://a.example/">a</a>`, links)})
		if err == nil {
			c, err = c.Tracked(Track{Clicks: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() error { _, _, err := c.RenderTracked(`{}`, "", testTracking, MaxWait); return err }
	}
	few, many := tracked(fewLinks), tracked(fewLinks+1)
	leave := processorstest.Take(rendering, workspace)
	if err := few(); err != nil {
		t.Error(err)
	}
	leave()
	if err := processorstest.Waits(t, rendering, workspace, many); err != nil {
		t.Error(err)
	}
}

// Contents are checked and compiled on the processors that their workspace leaves to others.
func TestCompilationsWaitForAProcessor(t *testing.T) {
	t.Parallel()
	workspace, c := uuid.New(), Content{Subject: "Hi {{ name }}", Text: "Hi"}
	compiled, err := Compile(workspace, c)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOMAXPROCS(0) > 1 {
		leave := processorstest.Take(compiling, workspace)
		if _, err := Compile(uuid.New(), c); err != nil {
			t.Errorf("another workspace: %v", err)
		}
		leave()
	}
	for name, compute := range map[string]func() error{
		"check":   func() error { _, err := Check(workspace, c); return err },
		"compile": func() error { _, err := compiled.WithHeaders(map[string]string{"X-Name": "{{ name }}"}); return err },
	} {
		if err := processorstest.Waits(t, compiling, workspace, compute); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
