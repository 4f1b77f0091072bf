package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"lemma"
)

// Type is a type of Postgres that a list can be ordered by.
type Type string

// The types of keys.
const (
	UUID Type = "uuid"
	Text Type = "text"
	Time Type = "timestamptz"
	Int  Type = "int"
)

// cursorFormat is the first byte of each cursor.
const cursorFormat = 1

// seal is how many bytes of the hash of list, order and filter a cursor holds.
const seal = 8

// binding is the hash of what a cursor is valid for: the list, the order, and the
// conditions with their arguments.
func (s *Statement[T]) binding() []byte {
	form, err := json.Marshal([]any{s.list.Name, s.query.Sort, s.conditions, s.args})
	if err != nil {
		panic("list " + s.list.Name + ": " + err.Error()) // an argument that is not a plain value
	}
	sum := sha256.Sum256(form)
	return sum[:seal]
}

// encode returns the cursor of the rows that follow a row.
func (s *Statement[T]) encode(row T) string {
	position := make([]any, len(s.order))
	for i, k := range s.order {
		position[i] = k.Of(row)
	}
	return s.encodePosition(position)
}

func (s *Statement[T]) encodePosition(of []any) string {
	texts := make([]string, len(of))
	for i, value := range of {
		switch value := value.(type) {
		case uuid.UUID:
			texts[i] = value.String()
		case time.Time:
			texts[i] = strconv.FormatInt(value.UnixMicro(), 36)
		case int:
			texts[i] = strconv.Itoa(value)
		case int32:
			texts[i] = strconv.Itoa(int(value))
		case string:
			texts[i] = value
		}
	}
	position, _ := json.Marshal(texts) // strings never fail
	raw := append(append([]byte{cursorFormat}, s.binding()...), position...)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// decode reads the position of a cursor, as arguments of the statement.
func (s *Statement[T]) decode(cursor string) ([]any, error) {
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(raw) <= seal || raw[0] != cursorFormat || !bytes.Equal(raw[1:1+seal], s.binding()) {
		return nil, InvalidCursor()
	}
	var texts []string
	if json.Unmarshal(raw[1+seal:], &texts) != nil || len(texts) != len(s.order) {
		return nil, InvalidCursor()
	}
	position := make([]any, len(texts))
	for i, k := range s.order {
		var ok bool
		if position[i], ok = k.Type.read(texts[i]); !ok {
			return nil, InvalidCursor()
		}
	}
	return position, nil
}

// lastMicro is the year 9999, the latest time of a cursor.
var lastMicro = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// read converts the text of a cursor, which any client can write, to a value that Postgres accepts.
func (t Type) read(text string) (any, bool) {
	switch t {
	case UUID:
		id, err := uuid.Parse(text)
		return id, err == nil
	case Time:
		micros, err := strconv.ParseInt(text, 36, 64)
		return time.UnixMicro(micros).UTC(), err == nil && micros >= 0 && micros <= lastMicro
	case Int:
		n, err := strconv.ParseInt(text, 10, 32)
		return int32(n), err == nil
	}
	return text, utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

// InvalidCursor is the error for a cursor that is not one of the list.
func InvalidCursor() error {
	return lemma.Fault("?cursor", "invalid_cursor",
		"must be a cursor of this list with this filter and sort; omit it to begin at the first page")
}
