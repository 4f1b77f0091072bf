package sender

import "testing"

// BenchmarkCommit commits without outcomes, which is the fixed cost of a window.
func BenchmarkCommit(bench *testing.B) {
	b := newBundle(bench)
	s := b.sender()
	c, err := s.Claim(bg, b.insert(1, 1, 2)[0])
	if err != nil {
		bench.Fatal(err)
	}
	for bench.Loop() {
		if g, err := s.commitOnce(bg, c, nil, ending{state: stateKeep}); g != open || err != nil {
			bench.Fatal(g, err)
		}
	}
}

// BenchmarkCommitValues is the cost of the parameters of a commit.
func BenchmarkCommitValues(bench *testing.B) {
	s, c := &Sender{}, &claim{token: "process/1"}
	for bench.Loop() {
		commitWindow.args(s.commitValues(c, nil, ending{state: stateKeep}))
	}
}
