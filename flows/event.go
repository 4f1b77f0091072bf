package flows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"lemma"
)

// Limits of an event.
const (
	MaxProfileKey = 255      // bytes
	MaxEventName  = 100      // characters
	MaxEventID    = 255      // bytes
	MaxProperties = 32 << 10 // bytes of the JSON object
	MaxDepth      = 8        // levels of it
)

// earliest and latest bound the time that an event may say of itself.
var earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const latest = 24 * time.Hour

// occurrence is one thing that may enroll a profile, wake it or end its
// journey: an event, a person of an audience, or a direct request.
type occurrence struct {
	key        uuid.UUID // of the event
	sourceID   string
	profile    string
	name       string // empty: no event
	properties string
	at         time.Time
	source     string    // event, audience, direct
	flow       uuid.UUID // audience and direct: where to
	place      int       // among those of its transaction: a microsecond for each
	turn       time.Time // when its profile was found on the way and locked; zero: nobody was, and its place says all
	named      bool      // direct: told again, it is known by its key

	data map[string]any // the trigger as conditions see it, once somebody asked
}

// Sources of an enrollment.
const (
	fromEvent    = "event"
	fromAudience = "audience"
	fromDirect   = "direct"
)

// occurrence checks an event. Its faults point into the event.
func (e Event) occurrence() (*occurrence, error) {
	var fields []lemma.Field
	fault := func(pointer, code, format string, args ...any) {
		fields = append(fields, lemma.Field{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
	}
	if !isProfileKey(e.ProfileKey) {
		fault("/profile_key", "invalid_key", "a profile key has 1 to %d bytes of text, and no space around it", MaxProfileKey)
	}
	if !isText(e.Name, 1, 4*MaxEventName) || utf8.RuneCountInString(e.Name) > MaxEventName || strings.TrimSpace(e.Name) != e.Name {
		fault("/event", "event_invalid", "the name of an event has 1 to %d characters, and no space around it", MaxEventName)
	}
	if e.ID != "" && !isText(e.ID, 1, MaxEventID) {
		fault("/id", "id_invalid", "an id has 1 to %d bytes of text", MaxEventID)
	}
	properties, err := compactObject(e.Properties)
	if err != nil {
		fault("/properties", "properties_invalid", "%s", err)
	}
	now := time.Now()
	at := e.OccurredAt
	if at.IsZero() {
		at = now
	}
	if at.Before(earliest) || at.After(now.Add(latest)) {
		fault("/occurred_at", "out_of_range", "the time is before 2000 or more than a day ahead")
	}
	if len(fields) > 0 {
		return nil, &lemma.Error{Kind: lemma.Invalid, Message: "the event is not valid", Fields: fields}
	}
	o := &occurrence{key: lemma.NewID(), sourceID: e.ID, profile: e.ProfileKey, name: e.Name, properties: properties,
		at: at.UTC().Truncate(time.Microsecond), source: fromEvent}
	switch {
	case e.ID != "":
		o.key = lemma.Key("event/1", e.ID)
	case e.Retry != "":
		o.key = lemma.Key("event/2", e.Retry)
	}
	return o, nil
}

// occurrence checks a direct enrollment.
func (e Enrolling) occurrence(flow uuid.UUID) (*occurrence, error) {
	o, err := Event{ID: e.ID, Retry: e.Retry, ProfileKey: e.ProfileKey, Name: "enrollment", Properties: e.Properties, OccurredAt: e.OccurredAt}.occurrence()
	if err != nil {
		return nil, err
	}
	o.name, o.source, o.flow = "", fromDirect, flow
	switch o.named = e.ID != "" || e.Retry != ""; {
	case e.ID != "":
		o.key = lemma.Key("direct/1", string(flow[:]), e.ID)
	case e.Retry != "":
		o.key = lemma.Key("direct/2", string(flow[:]), e.Retry)
	}
	return o, nil
}

// isProfileKey says whether a profile can be known by a key. White space around
// it is a fault of whoever wrote it: such a key would be another profile's.
func isProfileKey(key string) bool {
	return isText(key, 1, MaxProfileKey) && strings.TrimSpace(key) == key
}

func isText(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// compactObject checks a JSON object and takes the white space out of it.
func compactObject(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" || string(raw) == "{}" {
		return "{}", nil
	}
	if len(raw) > MaxProperties {
		return "", fmt.Errorf("the properties have more than %d bytes", MaxProperties)
	}
	if !bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")) {
		return "", fmt.Errorf("the properties are not a JSON object")
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil || !utf8.Valid(raw) {
		return "", fmt.Errorf("the properties are not valid JSON")
	}
	if depth(out.Bytes()) > MaxDepth {
		return "", fmt.Errorf("the properties are nested deeper than %d levels", MaxDepth)
	}
	if err := readable(out.Bytes()); err != nil {
		return "", err
	}
	if bytes.Contains(out.Bytes(), []byte(`\u0000`)) {
		return "", fmt.Errorf("the properties contain NUL")
	}
	return out.String(), nil
}

// readable refuses numbers that no reader of JSON could hold (1e400). Most
// texts have none that is long or has an exponent, and are not looked at.
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
		return fmt.Errorf("the properties have a number that is too large")
	}
	return nil
}

// depth counts the levels of valid JSON.
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

// trigger is the occurrence as conditions and templates see it.
func (o *occurrence) trigger() map[string]any {
	if o.data == nil {
		o.data = triggerData(o.name, o.sourceID, o.at, []byte(o.properties))
	}
	return o.data
}

func triggerData(name, id string, at time.Time, properties []byte) map[string]any {
	return map[string]any{"name": name, "id": id, "at": at.UTC().Format(time.RFC3339Nano), "properties": readObject(properties)}
}

// readObject reads a JSON object with its numbers as they are written: an id of
// 17 digits must not become its neighbour. What is no object is an empty one.
func readObject(text []byte) map[string]any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var o map[string]any
	if d.Decode(&o) != nil || o == nil {
		return map[string]any{}
	}
	return o
}

// json is the trigger as step 0 keeps it.
func (o *occurrence) json() string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(struct {
		Source  string `json:"source"`
		Trigger any    `json:"trigger"`
	}{o.source, struct {
		Name       string          `json:"name"`
		ID         string          `json:"id"`
		At         time.Time       `json:"at"`
		Properties json.RawMessage `json:"properties"`
	}{o.name, o.sourceID, o.at, json.RawMessage(o.properties)}})
	return strings.TrimSuffix(out.String(), "\n")
}
