// Package chaos tests the guarantees of Lemma under failures. It contains only tests.
// They use `lemma work` as real processes, real Postgres clusters with fsync on, SMTP
// to a catcher that counts every body, an HTTP gateway that reports events to `lemma
// serve`, and a customer's database behind a proxy that can be interrupted.
//
// The failures, each with its own test: worker processes are killed, frozen past their
// lease and shut down; mail servers drop connections, answer late and throttle;
// Postgres is stopped and crashes; connections to it break at every statement; fan-outs
// run twice at once and all jobs are lost; a customer's database freezes.
//
// After each of them, verify compares the customer's table, Lemma's notifications and
// attempts, and the messages at the mail server:
//
//   - Each profile has one notification, with a reason if it is not sent.
//   - Each profile gets at most two messages, and two only if the first attempt is unknown.
//   - An attempt is at most one request.
//   - The counts are balanced.
//
// Each test fails without the guard that it is about. `go test -overlay` removes a
// guard without a change of the file, and with GOFLAGS also in the workers' binary.
//
// No result depends on the speed of the machine. A test stops workers in the state that it
// is about: carriers hold back their answers, a source freezes at a byte, and locks hold
// statements. Leases and timeouts are longer than a test, and those of killed workers end
// at once (expireKilled). Conditions have minutes (longestWait), and a failure logs the state of
// the installation.
//
// Random kills log their seed, and LEMMA_CHAOS_SEED repeats them. By default workers are
// killed 2 to 8 times in a test, with 400 profiles or 167 keyed requests for each.
// LEMMA_CHAOS_KILLS=50 kills 50 in each test, with 20,000 profiles or 5,000 requests.
package chaos
