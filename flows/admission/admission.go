// Package admission limits the load of a process. Bulks bounds the bulk requests that
// run at a time. Gatherer processes single requests in shared transactions and bounds
// those that wait. Breakers stop queries to data sources that fail or are slow, so
// that enrollments without such a source continue.
//
// The limits are per process. A refused request had no effect and can be retried
// (CodeOverloaded, CodeSourceBusy, source_unavailable).
package admission
