// Package chaos shows that what Lemma promises holds while things break. It
// has no code of its own, only tests: with `lemma work` as real processes, real
// Postgres clusters with fsync on, real SMTP over a socket to a catcher that
// counts every body it is given, and a customer's database behind a wire that
// can be cut.
//
// What is shown, each by a test of its own: worker processes are killed,
// stopped past their lease, and shut down in the middle of a campaign; mail
// servers drop connections, answer late and throttle; Postgres is stopped and
// crashes; connections to it break at every statement; fan-outs run twice at once and every bell is lost; a customer's
// database freezes.
//
// After each of them one judge looks at everybody in the audience (see
// judge_test.go), and holds three ledgers that know nothing of each other
// against one another: the customer's table, Lemma's notifications and
// attempts, and what the mail server received. Nobody is missing without a
// reason; nobody is written to more than twice, and twice only where the first
// attempt is on record as unknown; no attempt is more than one request; the
// books balance.
//
// A test that cannot fail shows nothing: each of them has been seen red with
// the guard that it is about taken away. `go test -overlay` does that without
// touching a file, and with GOFLAGS it reaches the workers' binary as well.
//
// The dice that choose whom to kill, and when, log their seed; with it in
// LEMMA_CHAOS_SEED they fall like that again.
package chaos
