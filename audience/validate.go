package audience

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/address"
	"lemma/audience/sqltext"
	"lemma/audience/value"
)

// Draft is an audience that is not saved.
type Draft struct {
	DataSourceID   uuid.UUID
	SQL            string
	KeyColumn      string
	EmailColumn    string // of this and the following: empty for none
	PhoneColumn    string
	PhoneRegion    string
	PushColumn     string
	OptedOutColumn string
}

// Report is the result of a validation.
type Report struct {
	Columns       []Column
	EstimatedRows *int64 // estimate of the source, which may be far off; nil for a caller that may not read rows
	Warnings      []string
}

// maxColumns bounds the columns of an audience.
const maxColumns = 500

// Validate makes the source parse and describe the draft, without running it. The
// estimate is the planner's, which evaluates parts of a query (see ForCaller). Faults
// are at /sql, with line and column if the source gives them, and at the fields that
// name a column or the region.
func (a *Audiences) Validate(ctx context.Context, ws uuid.UUID, d Draft) (Report, error) {
	if err := d.checkAddresses(); err != nil {
		return Report{}, err
	}
	source, err := a.opened(ctx, ws, d.DataSourceID)
	if err != nil {
		return Report{}, err
	}
	if err := checkText(source.target.Kind, d.SQL); err != nil {
		return Report{}, err
	}
	var report Report
	err = a.within(ctx, source, a.readSpan(), func(r *run) (err error) {
		if report.Columns, err = r.describe(r.ctx, d.SQL); err != nil {
			return err
		}
		if err = d.checkColumns(report.Columns); err != nil {
			return err
		}
		report.Warnings = r.warnings
		if textsFor(ctx) == noTexts {
			return nil
		}
		rows, err := r.estimate(r.ctx, d.SQL)
		report.EstimatedRows = &rows
		return err
	})
	return report, err
}

func (d Draft) checkColumns(columns []Column) error {
	if len(columns) == 0 || len(columns) > maxColumns {
		return badQuery(0, 0, "the query has %d columns, not 1 to %d", len(columns), maxColumns)
	}
	seen := map[string]bool{}
	for _, c := range columns {
		if seen[c.Name] {
			return badQuery(0, 0, "the query has two columns named %q; give one another name with as", sqltext.Printable(c.Name))
		}
		seen[c.Name] = true
	}
	if key, ok := columnNamed(columns, d.KeyColumn); !ok {
		return badColumn("/key_column", "the query has no column %q", sqltext.Printable(d.KeyColumn))
	} else if why := key.notAKey(); why != "" {
		return badColumn("/key_column", "the column %q %s", sqltext.Printable(key.Name), why)
	}
	for _, c := range []struct {
		pointer, name string
		types         []value.Type
	}{
		{"/email_column", d.EmailColumn, []value.Type{value.Text, value.Other}},
		{"/phone_column", d.PhoneColumn, []value.Type{value.Text, value.Other}},
		{"/push_column", d.PushColumn, []value.Type{value.Text, value.Other, value.JSON, value.ListOf(value.Text),
			value.ListOf(value.Other), value.ListOf(value.JSON)}},
		{"/opted_out_column", d.OptedOutColumn, []value.Type{value.Boolean, value.Integer}},
	} {
		if c.name == "" {
			continue
		}
		if err := checkColumn(columns, c.pointer, c.name, c.types...); err != nil {
			return err
		}
	}
	return nil
}

// notAKey returns why the column cannot be a profile key, or nothing.
func (c Column) notAKey() string {
	if !slices.Contains([]value.Type{value.Text, value.Integer, value.Number, value.Other}, c.Type) {
		return fmt.Sprintf("is of type %s, which cannot be a profile key; cast it to text (to char in MySQL)", c.Type)
	}
	return c.NoKey
}

// checkAddresses checks what the source need not be asked about.
func (d Draft) checkAddresses() error {
	switch {
	case d.EmailColumn == "" && d.PhoneColumn == "" && d.PushColumn == "":
		return lemma.Fault("/email_column", "required", "must be given, or phone_column, or push_column")
	case d.PhoneRegion != "" && d.PhoneColumn == "":
		return lemma.Fault("/phone_region", "not_allowed", "is allowed only with phone_column")
	case d.PhoneRegion != "" && !address.IsRegion(d.PhoneRegion):
		return lemma.Fault("/phone_region", "invalid_region", "must be a country by ISO 3166-1 alpha-2, such as DE")
	}
	return nil
}

func checkColumn(columns []Column, pointer, name string, types ...value.Type) error {
	c, ok := columnNamed(columns, name)
	if !ok {
		return badColumn(pointer, "the query has no column %q", sqltext.Printable(name))
	}
	if !slices.Contains(types, c.Type) {
		return badColumn(pointer, "the column %q is of type %s, and must be of one of these: %s", sqltext.Printable(name), c.Type, joined(types))
	}
	return nil
}

func joined(types []value.Type) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = string(t)
	}
	return strings.Join(names, ", ")
}
