package lemma

import (
	_ "embed"
	"errors"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the same zones on every machine
)

var errZone = errors.New("unknown time zone")

// zoneNames are the names of the IANA time zones that Go's time/tzdata contains, one a
// line. Factory is left out: it stands for "not set".
//
//go:embed zones.txt
var zoneNames string

// zone loads one time zone, once.
type zone func() (*time.Location, error)

var zones = func() map[string]zone {
	all := map[string]zone{}
	for name := range strings.FieldsSeq(zoneNames) {
		all[name] = sync.OnceValues(func() (*time.Location, error) { return time.LoadLocation(name) })
	}
	return all
}()

// Zone returns an IANA time zone by its name, such as Europe/Berlin or UTC. Zones from
// requests are found only here. Only names on the list are loaded, since
// time.LoadLocation opens files: it accepts Europe/./Berlin, and the machine's own zone
// under several names.
func Zone(name string) (*time.Location, error) {
	load, known := zones[name]
	if !known {
		return nil, errZone
	}
	return load()
}
