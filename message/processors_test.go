package message

import (
	"testing"
	"time"
)

// A render waits while all slots are taken, and the wait is not part of its time.
func TestRendersWaitForAProcessor(t *testing.T) {
	t.Parallel()
	fast, err := Compile(Content{Subject: "Hi {{ name }}", Text: "Hi"})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := Compile(Content{Subject: "Hi", Text: "{% for a in list %}{{ a | plus: 1 }}{% endfor %}"})
	if err != nil {
		t.Fatal(err)
	}
	for range cap(processors) {
		processors <- struct{}{}
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
	for range cap(processors) {
		<-processors
	}
	if t.Failed() {
		return
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
