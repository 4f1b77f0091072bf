package lemma

import (
	"errors"
	"strings"
	"time"
	_ "time/tzdata" // zones are the same wherever Lemma runs
)

// errZone is the answer for what is no IANA time zone.
var errZone = errors.New("unknown time zone")

// notZones are names that time.LoadLocation takes and that mean something else
// on every machine, or nothing: the machine's own zone, a file of rules, and a
// zone that stands for "not set". UTC has its own name; "" is none.
var notZones = map[string]bool{"": true, "local": true, "localtime": true, "posixrules": true, "factory": true}

// Zone finds an IANA time zone by its name, such as Europe/Berlin or UTC. It is
// the one way to a zone that somebody has entered. The machine's own zone is
// refused, under whatever name: a time must not depend on where Lemma runs.
func Zone(name string) (*time.Location, error) {
	lower := strings.ToLower(name)
	if notZones[lower] || strings.HasPrefix(lower, "posix/") || strings.HasPrefix(lower, "right/") {
		return nil, errZone
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, errZone
	}
	return zone, nil
}
