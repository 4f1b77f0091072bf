package enrollment

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// MaxProfileKey is how long a profile key may be, in bytes.
const MaxProfileKey = 255

// IsProfileKey reports whether a key is valid. White space around a key is rejected:
// trimmed, it would be another profile's key.
func IsProfileKey(key string) bool {
	return IsText(key, 1, MaxProfileKey) && strings.TrimSpace(key) == key
}

// IsText checks the length in bytes, and that the text is UTF-8 without NUL.
func IsText(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// TriggerData is a trigger as conditions and templates see it.
func TriggerData(name, id string, at time.Time, properties []byte) map[string]any {
	return map[string]any{"name": name, "source_id": id, "at": at.UTC().Format(time.RFC3339Nano), "properties": ReadObject(properties)}
}

// ReadObject parses a JSON object and keeps its numbers as they are written: an id of 17
// digits must not become another one. Any other text is an empty object.
func ReadObject(text []byte) map[string]any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var o map[string]any
	if d.Decode(&o) != nil || o == nil {
		return map[string]any{}
	}
	return o
}

// ReadTriggers reads the data of the first steps of enrollments, which TriggerOf decodes:
// most bytes of it in all, and the first id's in any case. Of the others it is nil.
func ReadTriggers(ctx context.Context, q Querier, ws uuid.UUID, ids []pgtype.UUID, most int) (map[uuid.UUID]*string, error) {
	rows, _ := q.Query(ctx, `
		select s.id, case when s.total <= $3 or s.id = $4 then s.data end from (
			select r.id, s.data, sum(octet_length(s.data)) over (rows unbounded preceding) as total from `+OneByOne+` (
				select coalesce(s.data, '{}') as data from enrollment_steps s
				where s.workspace_id = $1 and s.enrollment_id = r.id and s.step = 0 limit 1
			) s
		) s`, ws, ids, most, ids[0])
	triggers := make(map[uuid.UUID]*string, len(ids))
	var id pgtype.UUID
	var data *string
	_, err := pgx.ForEachRow(rows, []any{&id, &data}, func() error {
		triggers[id.Bytes] = data
		return nil
	})
	return triggers, lemma.Wrap(err, "read triggers")
}

// TriggerOf reads the trigger from the first step's data.
func TriggerOf(data string) map[string]any {
	if trigger, ok := ReadObject([]byte(data))["trigger"].(map[string]any); ok {
		return trigger
	}
	return map[string]any{"name": "", "source_id": "", "properties": map[string]any{}}
}
