package audience

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Privileges are split as the expression splits them, which takes seconds for lists that are not closed.
func TestPrivilegesOfAGrant(t *testing.T) {
	expression := regexp.MustCompile(`[^,(]+(?:\([^)]*\))?`)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		text := make([]byte, random.IntN(30))
		for i := range text {
			text[i] = "ab, ()"[random.IntN(6)]
		}
		var want []string
		for _, p := range expression.FindAllString(string(text), maxPrivileges+1) {
			want = append(want, strings.TrimSpace(p))
		}
		if diff := cmp.Diff(want, privilegesOf(string(text))); diff != "" {
			t.Fatalf("%q: %s", text, diff)
		}
	}
}

func TestALongGrant(t *testing.T) {
	ended := make(chan int)
	go func() {
		n := 0
		for range 100 {
			n += len(parseGrant("GRANT " + strings.Repeat("a(", maxGrant/2-20) + " ON *.* TO `a`@`b`").privileges)
		}
		ended <- n
	}()
	select {
	case n := <-ended:
		if n != 100*(maxPrivileges+1) {
			t.Errorf("%d privileges", n)
		}
	case <-time.After(20 * time.Second): // the expression takes minutes
		t.Error("it takes longer than 20 s")
	}
}
