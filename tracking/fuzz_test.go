package tracking

import (
	"testing"

	"github.com/google/uuid"
)

// A payload is read as it was written, and others are refused without a crash.
func FuzzPayload(f *testing.F) {
	f.Add(make([]byte, 32), 0, "https://shop.example/")
	f.Add([]byte("0123456789012345678901234567890101x"), 127, "")
	f.Fuzz(func(t *testing.T, raw []byte, number int, url string) {
		for _, click := range []bool{true, false} {
			if got, ok := parse(raw, click); ok && (got.url != "") != click {
				t.Errorf("%x, click %t: %+v", raw, click, got)
			}
		}
		want := target{uuid.New(), uuid.New(), number & (1<<30 - 1), url}
		if url == "" {
			want.link = 0
		}
		if got, ok := parse(want.payload(nil), url != ""); !ok || got != want {
			t.Errorf("%+v becomes %+v, %t", want, got, ok)
		}
		if _, ok := parse(want.payload(nil), url == ""); ok {
			t.Error("an open is a click")
		}
	})
}
