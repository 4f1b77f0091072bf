package audience

import (
	"fmt"
	"math"
	"testing"
)

// Different texts are counted exactly up to a bound, and within 8 % (five standard errors) above it.
func TestDistinct(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, mostLeast - 1, mostLeast, 20_000, 300_000} {
		d := newDistinct()
		for i := range 2 * n {
			d.add(fmt.Sprint(i % max(n, 1)))
		}
		got, allowed := d.count(), 0.0
		if n >= mostLeast {
			allowed = 5 / math.Sqrt(mostLeast)
		}
		if math.Abs(float64(got)-float64(n)) > allowed*float64(n) {
			t.Errorf("%d, want %d", got, n)
		}
		if len(d.known) > mostLeast || len(d.least) > mostLeast {
			t.Errorf("%d hashes are kept", len(d.known))
		}
	}
}
