package smtp

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"lemma/dev/catcher"
	"lemma/sender/sendertest"
)

var faultsFor = map[sendertest.Behaviour]catcher.Fault{
	sendertest.Reject:    catcher.Refuse("554 5.7.1 Never <USER2@example.test>"),
	sendertest.Refuse:    catcher.Refuse("451 4.7.1 Later"),
	sendertest.DropAfter: catcher.DropKept,
	sendertest.Late:      {Delay: time.Minute},
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, offers := range []string{"pipelining", "lock-step"} {
		t.Run(offers, func(t *testing.T) {
			t.Parallel()
			sendertest.Conformance(t, sendertest.Harness{
				Address: func(n int) string { return fmt.Sprintf("user%d@example.test", n) },
				Reasons: documentedReasons(t),
				Serve: func(t *testing.T, behave func(string) sendertest.Behaviour) sendertest.FarEnd {
					return catcherEnd(t, behave, offers == "pipelining")
				},
			})
		})
	}
}

// documentedReasons are the words of the table in the package's comment.
func documentedReasons(t *testing.T) (all []string) {
	t.Helper()
	source, err := os.ReadFile("smtp.go")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(source), "// A 4xx after")
	for line := range strings.SplitSeq(table, "\n") {
		if columns := regexp.MustCompile(`\s{2,}|\t`).Split(line, -1); len(columns) > 3 {
			all = append(all, strings.Split(columns[len(columns)-1], ", ")...)
		}
	}
	if len(all) < 20 {
		t.Fatalf("the table has only %q", all)
	}
	return all
}

func catcherEnd(t *testing.T, behave func(string) sendertest.Behaviour, pipelining bool) sendertest.FarEnd {
	t.Helper()
	var mu sync.Mutex
	received := map[string]int{}
	far, err := catcher.Start(catcher.Options{LockStep: !pipelining, Faults: func(e catcher.Event) catcher.Fault {
		if e.Stage != catcher.Dot {
			return catcher.Fault{}
		}
		mu.Lock()
		received[e.Recipient]++
		mu.Unlock()
		return faultsFor[behave(e.Recipient)]
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(far.Close)
	here := carrierTo(t, &server{address: far.Addr()}, "")
	here.timeout = 2 * time.Second
	return sendertest.FarEnd{Carrier: here, Nowhere: carrierTo(t, noServer(t), ""), Requests: func(to string) [][]byte {
		mu.Lock()
		defer mu.Unlock()
		bodies := make([][]byte, received[to])
		i := 0
		for _, e := range far.Ledger() {
			if e.Recipient == to {
				bodies[i], _ = far.Source(e.N)
				i++
			}
		}
		return bodies
	}}
}

// noServer is a server that has been stopped.
func noServer(t *testing.T) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return &server{address: listener.Addr().String()}
}
