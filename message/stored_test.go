package message

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// What is stored in place of data that is too large has the error of the data.
func TestStoredData(t *testing.T) {
	t.Parallel()
	c, err := Compile(uuid.Nil, Content{Subject: "s", Text: "{{ a }}"})
	if err != nil {
		t.Fatal(err)
	}
	of := func(size int) string { return `{"a":"` + strings.Repeat("x", size-len(`{"a":""}`)) + `"}` }
	if fits := of(MaxPayload); Stored(fits) != fits {
		t.Error("data within the limit is changed")
	}
	large := of(MaxPayload + 1)
	_, want := c.Render(large)
	_, got := c.Render(Stored(large))
	if want == nil || got == nil || got.Error() != want.Error() || !strings.Contains(got.Error(), "262144 bytes") {
		t.Errorf("the error is %v, want %v", got, want)
	}
	if n := len(Stored(large)); n > 100 {
		t.Errorf("%d bytes are stored", n)
	}
}
