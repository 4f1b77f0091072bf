// Package enrollment has what all packages that write enrollments share: the names of
// statuses, reasons and steps; the keys of enrollments, their notifications and refusals;
// the rows of steps, refusals and counts; the shards that workers lease, and the waker
// that wakes workers where enrollments are due; the locks; and the rules for plans.
//
// Locks are taken in this order: the flow (LockFlow or ShareFlow), its row, the
// profiles, enrollments by their id, and the bounds of shards (LowerBounds).
//
// It decides nothing. Package execution decides what an enrollment does next,
// intake which profiles enroll, and flows writes the results.
package enrollment
