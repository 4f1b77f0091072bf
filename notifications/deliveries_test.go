package notifications

import "testing"

// How many deliveries have happened is between the bounds, whatever the attempts and the
// events: an event that names no attempt may be of either.
func TestBoundsOfDeliveries(t *testing.T) {
	t.Parallel()
	unknown := func(attempt int) attemptLine {
		return attemptLine{Attempt: attempt, Outcome: "unknown", Basis: "reaper"}
	}
	response := func(attempt int, outcome string) attemptLine {
		return attemptLine{Attempt: attempt, Outcome: outcome, Basis: "response"}
	}
	settled := func(attempt int, outcome string) attemptLine {
		return attemptLine{Attempt: attempt, Outcome: outcome, Basis: "evidence"}
	}
	uncalled := settled(2, "accepted")
	uncalled.Reason = new(ReasonFirstAccepted)
	type evidence struct {
		kind    string
		attempt int
	}
	for name, c := range map[string]struct {
		attempts    []attemptLine
		events      []evidence
		least, most int
	}{
		"one unknown":                           {[]attemptLine{unknown(1)}, nil, 0, 1},
		"one unknown, rejected":                 {[]attemptLine{unknown(1)}, []evidence{{"rejected", 1}}, 0, 0},
		"one unknown, some rejected":            {[]attemptLine{unknown(1)}, []evidence{{"rejected", 0}}, 0, 0},
		"one unknown, some accepted":            {[]attemptLine{unknown(1)}, []evidence{{"accepted", 0}}, 1, 1},
		"two unknown":                           {[]attemptLine{unknown(1), unknown(2)}, nil, 0, 2},
		"two unknown, some rejected":            {[]attemptLine{unknown(1), unknown(2)}, []evidence{{"rejected", 0}}, 0, 1},
		"two unknown, some rejected twice":      {[]attemptLine{unknown(1), unknown(2)}, []evidence{{"rejected", 0}, {"rejected", 0}}, 0, 1},
		"two unknown, both rejected":            {[]attemptLine{unknown(1), unknown(2)}, []evidence{{"rejected", 1}, {"rejected", 2}}, 0, 0},
		"unknown, then rejected":                {[]attemptLine{unknown(1), response(2, "rejected")}, nil, 0, 1},
		"unknown, then rejected, some rejected": {[]attemptLine{unknown(1), response(2, "rejected")}, []evidence{{"rejected", 0}}, 0, 1},
		"unknown, then not called, some rejected": {[]attemptLine{unknown(1), {Attempt: 2, Outcome: "skipped", Basis: "gate"}},
			[]evidence{{"rejected", 0}}, 0, 0},
		"unknown, then accepted, some rejected": {[]attemptLine{unknown(1), response(2, "accepted")}, []evidence{{"rejected", 0}}, 1, 1},
		"both accepted, some rejected by a mistake": {[]attemptLine{unknown(1), response(2, "accepted")},
			[]evidence{{"accepted", 1}, {"rejected", 0}}, 2, 2},
		// What is known after events and windows were dropped.
		"settled by an event":                    {[]attemptLine{settled(1, "accepted")}, nil, 1, 1},
		"settled by an event that is kept":       {[]attemptLine{settled(1, "accepted")}, []evidence{{"accepted", 1}}, 1, 1},
		"rejected by an event":                   {[]attemptLine{settled(1, "rejected")}, nil, 0, 0},
		"unknown, then settled by an event":      {[]attemptLine{unknown(1), settled(2, "accepted")}, nil, 1, 2},
		"unknown, then rejected by an event":     {[]attemptLine{unknown(1), settled(2, "rejected")}, nil, 0, 1},
		"unknown, then not called, since it was": {[]attemptLine{unknown(1), uncalled}, nil, 1, 1},
	} {
		d := newDeliveries()
		for _, a := range c.attempts {
			d.addAttempt(a)
		}
		for _, e := range c.events {
			d.addEvidence(e.kind, e.attempt)
		}
		if least, most := d.bounds(); least != c.least || most != c.most {
			t.Errorf("%s: %d to %d, want %d to %d", name, least, most, c.least, c.most)
		}
	}
}

// A late event resolves two unknown calls, and is dropped later.
func TestBoundsOfResolved(t *testing.T) {
	t.Parallel()
	for resolution, want := range map[string][2]int{"": {0, 2}, "sent": {1, 2}, "not_sent": {0, 0}} {
		d := newDeliveries()
		for attempt := 1; attempt <= 2; attempt++ {
			d.addAttempt(attemptLine{Attempt: attempt, Outcome: "unknown", Basis: "reaper"})
		}
		d.addResolution(resolution)
		if least, most := d.bounds(); least != want[0] || most != want[1] {
			t.Errorf("%s: %d to %d, want %d to %d", resolution, least, most, want[0], want[1])
		}
	}
}
