package audience

import (
	"context"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"lemma/audience/value"
	"lemma/page"
)

// Preview has the first rows of an audience.
type Preview struct {
	Columns   []Column
	Truncated bool    // further rows would have exceeded page.MaxBytes
	Rows      [][]any // one value per column: nil, bool, json.Number, string or, of type json and of lists, json.RawMessage
}

// Limits of a preview.
const (
	MaxPreview = 100  // rows
	maxCell    = 1000 // bytes of one value; longer ones are cut and end in …
)

// Preview reads up to limit rows, at most MaxPreview, with all columns.
func (a *Audiences) Preview(ctx context.Context, ws, id uuid.UUID, limit int) (Preview, error) {
	x, source, err := a.forReading(ctx, ws, id)
	if err != nil {
		return Preview{}, err
	}
	var p Preview
	err = a.within(ctx, source, a.readSpan(), func(r *run) error {
		if p.Columns, err = r.describe(r.ctx, x.SQL); err != nil {
			return noLongerValid(err)
		}
		if err := x.stillHas(p.Columns); err != nil {
			return err
		}
		return p.read(r, x, min(max(limit, 1), MaxPreview))
	})
	return p, err
}

func (p *Preview) read(r *run, x Audience, limit int) error {
	names := make([]string, len(p.Columns))
	for i, c := range p.Columns {
		names[i] = c.Name
	}
	c, err := r.open(r.ctx, x.SQL, names, limit)
	if err != nil {
		return noLongerValid(err)
	}
	values, bytes := make([][]byte, len(names)), 0
	for len(p.Rows) < limit {
		more, err := c.next(values)
		if err != nil || !more {
			return err
		}
		row := make([]any, len(values))
		for i, v := range values {
			row[i] = cell(p.Columns[i].Type, v)
		}
		bytes += page.Size(row)
		if p.Truncated = bytes > page.MaxBytes; p.Truncated {
			return nil
		}
		p.Rows = append(p.Rows, row)
	}
	return nil
}

// cell decodes the JSON of a value in a payload.
func cell(t value.Type, text []byte) any {
	if len(text) > maxCell {
		return strings.ToValidUTF8(string(text[:maxCell]), "") + "…"
	}
	encoded := value.Append(nil, t, text)
	switch encoded[0] {
	case 'n':
		return nil
	case 't', 'f':
		return encoded[0] == 't'
	case '"':
		var s string
		if json.Unmarshal(encoded, &s) != nil || !utf8.ValidString(s) {
			return ""
		}
		return s
	}
	if t == value.JSON || encoded[0] == '[' {
		return json.RawMessage(encoded)
	}
	return json.Number(encoded)
}
