package message

import "testing"

func TestTheCacheIsBounded(t *testing.T) {
	t.Parallel()
	var c cache
	for n := range 1000 {
		c.put(versionKey{version: n}, &Compiled{}, cacheBytes/10)
		if len(c.held) > 10 || c.bytes > cacheBytes {
			t.Fatalf("it holds %d of %d bytes", len(c.held), c.bytes)
		}
	}
	if c.get(versionKey{version: 999}) == nil {
		t.Error("it does not hold the last")
	}
}
