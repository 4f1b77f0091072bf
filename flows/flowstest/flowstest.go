// Package flowstest has the fixtures of tests of flows: a workspace with a data source, an
// audience, a template and a provider, and processes (New, Fixture, Process); steps of a test in
// one line each (Live, RecordEvent, Settle, Pass); and races with real workers, each
// stopped between its steps (StopAt, Pair). Only tests import it.
package flowstest
