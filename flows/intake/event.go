package intake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows/enrollment"
)

// Limits of an event.
const (
	MaxEventID    = 255      // bytes
	MaxProperties = 32 << 10 // bytes of the JSON object without white space
	MaxDepth      = 8        // levels of it
)

// EarliestTime is the earliest time of its own that an event may have.
var EarliestTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// LatestAhead is how far in the future that time may be.
const LatestAhead = 24 * time.Hour

// Trigger may enroll a profile, wake its enrollment or end it: an event, a profile of an
// audience, or a direct request.
type Trigger struct {
	Key        uuid.UUID // of the event
	sourceID   string
	profile    string
	Name       string // empty: no event
	properties string
	At         time.Time
	undated    bool      // it has no time of its own: it is given that of the database
	source     string    // event, audience, direct
	flow       uuid.UUID // audience and direct: the flow to enroll in
	place      int       // its order in the transaction: a microsecond for each
	applied    time.Time // when the profile's active enrollments were locked; zero: there are none, and place is its order
	named      bool      // direct: repeated, it is found by its key
	received   time.Time // offered again, or an event of exit_on: when it was received
	exitedBy   string    // offered again: an event of exit_on that was received after it
	unchecked  bool      // offered again: such events took too long to check
	refusedAt  time.Time // offered again: when it was refused before

	exitData map[bool]string // of the steps of enrollments that it ends, by whether that is a goal

	data map[string]any // the trigger as conditions see it, built on demand
}

// Check checks an event. Its faults have pointers into the event.
func (e Event) Check(now time.Time) (*Trigger, error) {
	var fields []lemma.Field
	fault := func(pointer, code, format string, args ...any) {
		fields = append(fields, lemma.Field{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
	}
	if !enrollment.IsProfileKey(e.ProfileKey) {
		fault("/profile_key", "invalid_key", "must be text of 1 to %d bytes, and no space around it", enrollment.MaxProfileKey)
	}
	if !enrollment.IsText(e.Name, 1,
		4*lemma.MaxEventName) || utf8.RuneCountInString(e.Name) > lemma.MaxEventName || strings.TrimSpace(e.Name) != e.Name {
		fault("/event", "event_invalid", "the name of an event has 1 to %d characters, and no space around it", lemma.MaxEventName)
	}
	if e.ID != "" && !enrollment.IsText(e.ID, 1, MaxEventID) {
		fault("/source_id", "id_invalid", "a source_id has 1 to %d bytes of text", MaxEventID)
	}
	properties, err := compactObject(e.Properties)
	if err != nil {
		fault("/properties", "properties_invalid", "%s", err)
	}
	at := e.OccurredAt
	if at.IsZero() {
		at = now
	}
	if at.Before(EarliestTime) || at.After(now.Add(LatestAhead)) {
		fault("/occurred_at", "out_of_range", "the time is before 2000 or more than a day ahead")
	}
	if len(fields) > 0 {
		return nil, &lemma.Error{Kind: lemma.Invalid, Message: "the event is not valid", Fields: fields}
	}
	o := &Trigger{Key: lemma.NewID(), sourceID: e.ID, profile: e.ProfileKey, Name: e.Name, properties: properties,
		At: at.UTC().Truncate(time.Microsecond), undated: e.OccurredAt.IsZero(), source: enrollment.FromEvent}
	switch {
	case e.ID != "":
		o.Key = lemma.Key("event/1", e.ID)
	case e.Retry != "":
		o.Key = lemma.Key("event/2", e.Retry)
	}
	return o, nil
}

// Check checks a direct enrollment.
func (e Enrolling) Check(flow uuid.UUID, now time.Time) (*Trigger, error) {
	o, err := Event{ID: e.ID, Retry: e.Retry, ProfileKey: e.ProfileKey, Name: "enrollment", Properties: e.Properties,
		OccurredAt: e.OccurredAt}.Check(now)
	if err != nil {
		return nil, err
	}
	o.Name, o.source, o.flow = "", enrollment.FromDirect, flow
	switch o.named = e.ID != "" || e.Retry != ""; {
	case e.ID != "":
		o.Key = lemma.Key("direct/1", string(flow[:]), e.ID)
	case e.Retry != "":
		o.Key = lemma.Key("direct/2", string(flow[:]), e.Retry)
	}
	return o, nil
}

// compactObject checks a JSON object and removes its white space.
func compactObject(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" || string(raw) == "{}" {
		return "{}", nil
	}
	if !bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")) {
		return "", errors.New("the properties are not a JSON object")
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil || !utf8.Valid(raw) {
		return "", errors.New("the properties are not valid JSON")
	}
	if out.Len() > MaxProperties {
		return "", fmt.Errorf("the properties have more than %d bytes", MaxProperties)
	}
	if depth(out.Bytes()) > MaxDepth {
		return "", fmt.Errorf("the properties are nested deeper than %d levels", MaxDepth)
	}
	if err := readable(out.Bytes()); err != nil {
		return "", err
	}
	if lemma.HasNUL(out.Bytes()) {
		return "", errors.New("the properties contain NUL")
	}
	return out.String(), nil
}

// readable rejects numbers that no reader of JSON could hold (1e400). Texts without long
// numbers and exponents are not checked.
func readable(text []byte) error {
	suspect, run := false, 0
	for i, c := range text {
		digit := c >= '0' && c <= '9'
		suspect = suspect || (c == 'e' || c == 'E') && i > 0 && text[i-1] >= '0' && text[i-1] <= '9' || run > 300
		if run++; !digit {
			run = 0
		}
	}
	var v any
	if suspect && json.Unmarshal(text, &v) != nil {
		return errors.New("the properties have a number that is too large")
	}
	return nil
}

// depth returns the number of levels of valid JSON.
func depth(text []byte) int {
	now, most, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			most = max(most, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return most
}

// Data is the trigger as conditions and templates see it.
func (o *Trigger) Data() map[string]any {
	if o.data == nil {
		o.data = enrollment.TriggerData(o.Name, o.sourceID, o.At, []byte(o.properties))
	}
	return o.data
}

// json is the trigger as step 0 stores it.
func (o *Trigger) json() string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(struct {
		Source  string `json:"source"`
		Trigger any    `json:"trigger"`
	}{o.source, struct {
		Name       string          `json:"name"`
		ID         string          `json:"source_id"`
		At         time.Time       `json:"at"`
		Properties json.RawMessage `json:"properties"`
	}{o.Name, o.sourceID, o.At, json.RawMessage(o.properties)}})
	return strings.TrimSuffix(out.String(), "\n")
}

// Event is an action of a profile, as reported by a client.
type Event struct {
	ID         string // the client's own id: sent twice, it counts once; may be empty
	Retry      string // identifies the request if there is no ID: repeated, it counts once; never stored or shown
	ProfileKey string
	Name       string
	Properties json.RawMessage // an object; nil: none
	OccurredAt time.Time       // zero: now
}

// Recorded is the result of an event.
type Recorded struct {
	Key       uuid.UUID // of the event
	Duplicate bool      // it was recorded before, and had no effect
	Results   []Result  // one for each flow that it triggers
	Woken     int       // enrollments that it woke
	Exited    int       // enrollments that it ended
	Err       error     // the event is invalid, and was not recorded
}

// Result is the result of a trigger in one flow.
type Result struct {
	FlowID       uuid.UUID
	Outcome      string // enrolled or refused
	Reason       string // refused: one of the reasons that the API lists
	Detail       string
	EnrollmentID *uuid.UUID // enrolled: the new one; refused: the conflicting one, if any
}

// Enrolling is a request for a direct enrollment.
type Enrolling struct {
	ProfileKey string
	ID         string          // as of an Event
	Retry      string          // as of an Event
	Properties json.RawMessage // the trigger's
	OccurredAt time.Time       // zero: now
}
