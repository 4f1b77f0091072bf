package sender

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// The last rows of a batch are a short window also of a slow provider: it takes some in a row until the
// provider is quick again.
func TestASlowProviderIsQuickAfterSeveralShortWindows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took, waited time.Duration
		short        int // windows after which it is quick
	}{{100 * time.Millisecond, 0, 0}, {1100 * time.Millisecond, 0, 1}, {3 * time.Second, 0, 2}, {8 * time.Second, 0, 3}, {time.Hour, 0, 4},
		{400 * time.Millisecond, 350 * time.Millisecond, 1}} {
		s, l, provider := &Sender{cache: newCaches()}, &slots{}, uuid.New()
		p := s.paceOf(provider)
		p.ended(c.took, c.waited)
		n := 0
		for ; s.speed(l, provider) == slow && n < 100; n++ {
			p.ended(50*time.Millisecond, 0)
		}
		if n != c.short {
			t.Errorf("after %s it is quick after %d short windows", c.took, n)
		}
		if p.ended(2*time.Second, 0); s.speed(l, provider) != slow {
			t.Error("a long window does not make it slow")
		}
	}
}
