package message

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A render waits while all slots are taken, and the wait is not part of its time.
func TestRendersWaitForAProcessor(t *testing.T) {
	t.Parallel()
	fast, err := Compile(uuid.Nil, Content{Subject: "Hi {{ name }}", Text: "Hi"})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := Compile(uuid.Nil, Content{Subject: "Hi", Text: "{% for a in list %}{{ a | plus: 1 }}{% endfor %}"})
	if err != nil {
		t.Fatal(err)
	}
	// Of two workspaces, since one leaves a processor to others.
	leave := []func(){}
	for i := range runtime.GOMAXPROCS(0) {
		leave = append(leave, rendering.Enter(uuid.UUID{byte(1 + min(i, 1))}))
	}
	done := make(chan error, 1)
	go func() {
		made, err := slow.Render(`{"list":[1,2]}`)
		if err == nil && made.Text != "23" {
			t.Errorf("%q", made.Text)
		}
		done <- err
	}()
	if _, err := fast.Render(`{"name":"Ada"}`); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		t.Errorf("it does not wait: %v", err)
	case <-time.After(MaxTime + 100*time.Millisecond):
	}
	for _, l := range leave {
		l()
	}
	if t.Failed() {
		return
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The slot is that of the content's workspace, also with headers, marked links and another subject.
func TestAContentIsOfItsWorkspace(t *testing.T) {
	t.Parallel()
	own := uuid.UUID{3}
	c, err := Compile(own, Content{Subject: "Hi", HTML: `<p><a href="https://shop.example">Shop</a></p>`, Text: "Hi"})
	if err != nil {
		t.Fatal(err)
	}
	headers, err := c.WithHeaders(map[string]string{"X-Shop": "{{ name }}"})
	if err != nil {
		t.Fatal(err)
	}
	replaced, err := headers.Replaced(Replacement{Subject: "Look"})
	if err != nil {
		t.Fatal(err)
	}
	tracked, err := replaced.Tracked(Track{Opens: true, Clicks: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, of := range []*Compiled{c, headers, replaced, tracked} {
		if of.workspace != own {
			t.Errorf("%d is of %s", i, of.workspace)
		}
	}
}
