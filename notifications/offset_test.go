package notifications

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// The offset of a variant is whole: chunks are due somewhat before their time by the rate, and begin no
// offset earlier.
func TestOffsetsAreWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ chunk, offset, want time.Duration }{
		{-10 * time.Second, 0, -10 * time.Second}, {-10 * time.Second, 10 * time.Second, 10 * time.Second},
		{-4 * time.Second, time.Hour, time.Hour}, {5 * time.Second, time.Minute, 65 * time.Second},
	} {
		send := []Recipient{{Variant: 0}, {Variant: 1}}
		chunk := Chunk{OriginID: uuid.New(), BatchSize: 10, DueAfter: c.chunk, Variants: []Variant{{}, {Ordinal: 1, DueAfter: c.offset}}}
		d := newDealer(chunk, send)
		d.place(1)
		if got := d.batches[0].after; got != c.want {
			t.Errorf("a chunk due after %s and an offset of %s: %s, want %s", c.chunk, c.offset, got, c.want)
		}
	}
}
