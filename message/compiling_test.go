package message

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Messages with many links are tracked on such processors, too; those with few need none.
func TestManyLinksWaitForAProcessor(t *testing.T) {
	t.Parallel()
	workspace := uuid.New()
	tracked := func(links int) *Compiled {
		c, err := Compile(workspace, Content{Subject: "s", HTML: strings.Repeat(`<a href="https://a.example/">a</a>`, links)})
		if err == nil {
			c, err = c.Tracked(Track{Clicks: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	few, many := tracked(fewLinks), tracked(fewLinks+1)
	var leave []func()
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		leave = append(leave, rendering.Enter(workspace))
	}
	if _, _, err := few.RenderTracked(`{}`, "", testTracking, MaxWait); err != nil {
		t.Error(err)
	}
	done := make(chan error, 1)
	go func() { _, _, err := many.RenderTracked(`{}`, "", testTracking, MaxWait); done <- err }()
	select {
	case <-done:
		t.Fatal("it does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	for _, l := range leave {
		l()
	}
	if err := <-done; err != nil {
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
	var leave []func()
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		leave = append(leave, compiling.Enter(workspace))
	}
	done := make(chan error, 2)
	go func() { _, err := Check(workspace, c); done <- err }()
	go func() { _, err := compiled.WithHeaders(map[string]string{"X-Name": "{{ name }}"}); done <- err }()
	select {
	case <-done:
		t.Fatal("it does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := Compile(uuid.New(), c); err != nil && runtime.GOMAXPROCS(0) > 1 {
		t.Errorf("another workspace: %v", err)
	}
	for _, l := range leave {
		l()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
