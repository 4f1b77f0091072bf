package lemma

import (
	"errors"
	"strings"
	"time"
	_ "time/tzdata" // the same zones on every machine
)

var errZone = errors.New("unknown time zone")

// notZones are names that time.LoadLocation accepts but that are not zones, or that
// depend on the machine: its own zone, a file of rules, a zone for "not set". The
// empty name would be UTC.
var notZones = map[string]bool{"": true, "local": true, "localtime": true, "posixrules": true, "factory": true}

// Zone returns an IANA time zone by its name, such as Europe/Berlin or UTC. Zones
// from requests are found only here. The machine's own zone is rejected under every
// name: a time must not depend on the machine.
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
