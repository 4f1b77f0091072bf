package lemma

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

var errZone = errors.New("unknown time zone")

// zoneFile has the IANA time zones, as Go has them: `make zones` copies the file.
//
//go:embed zoneinfo.zip
var zoneFile []byte

// zone loads one time zone, once.
type zone func() (*time.Location, error)

// zones are the zones of the file by name. Factory is left out: it stands for "not set".
var zones = sync.OnceValues(func() (map[string]zone, error) {
	file, err := zip.NewReader(bytes.NewReader(zoneFile), int64(len(zoneFile)))
	if err != nil {
		return nil, fmt.Errorf("read time zones: %w", err)
	}
	all := map[string]zone{"UTC": func() (*time.Location, error) { return time.UTC, nil }}
	for _, f := range file.File {
		if !f.Mode().IsRegular() || f.Name == "Factory" || all[f.Name] != nil {
			continue
		}
		all[f.Name] = sync.OnceValues(func() (*time.Location, error) { return load(f) })
	}
	return all, nil
})

func load(f *zip.File) (*time.Location, error) {
	data, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("read time zone %s: %w", f.Name, err)
	}
	defer func() { _ = data.Close() }()
	rules, err := io.ReadAll(data)
	if err != nil {
		return nil, fmt.Errorf("read time zone %s: %w", f.Name, err)
	}
	return time.LoadLocationFromTZData(f.Name, rules)
}

// Zone returns an IANA time zone by its name, such as Europe/Berlin or UTC. Zones from
// requests are found only here: all processes of one version of Lemma have the same rules.
// time.LoadLocation prefers those of the machine, accepts Europe/./Berlin, and opens the
// machine's own zone under several names.
func Zone(name string) (*time.Location, error) {
	all, err := zones()
	if err != nil {
		return nil, err
	}
	load, known := all[name]
	if !known {
		return nil, errZone
	}
	return load()
}

// Instant returns the instant at which a zone's clocks show a wall time, which is given as if
// it were UTC. If the clocks are set forward over that time, it is the first instant after the
// gap; if they show it twice, it is the first of the two. time.Date guarantees neither.
func Instant(wall time.Time, zone *time.Location) time.Time {
	// No zone is further from UTC than 26 hours: begin before, and go on from one stretch
	// of equal offset to the next.
	for t := wall.Add(-26 * time.Hour).In(zone); ; {
		start, end := stretch(t)
		_, offset := t.Zone()
		instant := wall.Add(-time.Duration(offset) * time.Second)
		if !end.IsZero() && !instant.Before(end) {
			t = end
			continue
		}
		if !start.IsZero() && instant.Before(start) {
			instant = start
		}
		return instant.In(zone)
	}
}

// stretch returns the bounds of a time around t in which the offset is the same. The end is
// after t: ZoneBounds returns the begin of the last UTC day of a leap year for all times of that
// day, in zones that change their clocks by a rule (https://go.dev/issue/81583).
func stretch(t time.Time) (start, end time.Time) {
	start, end = t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		const day = 24 * time.Hour
		end = t.UTC().Truncate(day).Add(day).In(t.Location())
	}
	return start, end
}
