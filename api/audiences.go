package api

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/notifications"
)

type audienceBody struct {
	ID             string            `json:"id"`
	DataSourceID   string            `json:"data_source_id"`
	Name           string            `json:"name"`
	SQL            string            `json:"sql"`
	KeyColumn      string            `json:"key_column"`
	EmailColumn    *string           `json:"email_column"`
	PhoneColumn    *string           `json:"phone_column"`
	PhoneRegion    *string           `json:"phone_region"`
	PushColumn     *string           `json:"push_column"`
	OptedOutColumn *string           `json:"opted_out_column"`
	Columns        []audience.Column `json:"columns"`
	CreatedAt      time.Time         `json:"created_at"`
	UpdatedAt      time.Time         `json:"updated_at"`
	Warnings       []string          `json:"warnings,omitempty"`
	version        int
}

func (b audienceBody) etag() int        { return b.version }
func (b audienceBody) location() string { return "/v1/audiences/" + b.ID }

func showAudience(a audience.Audience) audienceBody {
	return audienceBody{ID: lemma.FormatID(lemma.PrefixAudience, a.ID), DataSourceID: lemma.FormatID(lemma.PrefixDataSource, a.DataSourceID),
		Name: a.Name, SQL: a.SQL, KeyColumn: a.KeyColumn, EmailColumn: orNull(a.EmailColumn), PhoneColumn: orNull(a.PhoneColumn),
		PhoneRegion: orNull(a.PhoneRegion), PushColumn: orNull(a.PushColumn), OptedOutColumn: orNull(a.OptedOutColumn),
		Columns: each(a.Columns, column), CreatedAt: a.CreatedAt.UTC(), UpdatedAt: a.UpdatedAt.UTC(), version: a.Version}
}

func column(c audience.Column) audience.Column { return c }

type audienceDraft struct {
	DataSourceID   string `json:"data_source_id"`
	SQL            string `json:"sql"`
	KeyColumn      string `json:"key_column"`
	EmailColumn    string `json:"email_column"`
	PhoneColumn    string `json:"phone_column"`
	PhoneRegion    string `json:"phone_region"`
	PushColumn     string `json:"push_column"`
	OptedOutColumn string `json:"opted_out_column"`
}

type newAudience struct {
	Name string `json:"name"`
	audienceDraft
}

type audiencePatch struct {
	Name           *string          `json:"name"`
	DataSourceID   *string          `json:"data_source_id"`
	SQL            *string          `json:"sql"`
	KeyColumn      *string          `json:"key_column"`
	EmailColumn    optional[string] `json:"email_column"`
	PhoneColumn    optional[string] `json:"phone_column"`
	PhoneRegion    optional[string] `json:"phone_region"`
	PushColumn     optional[string] `json:"push_column"`
	OptedOutColumn optional[string] `json:"opted_out_column"`
}

func (s *server) listAudiences(ctx context.Context, c *call, _ none) (list[audienceBody], error) {
	found, next, err := s.Audiences.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showAudience)
}

func (s *server) createAudience(ctx context.Context, c *call, in newAudience) (audienceBody, error) {
	source, err := s.sourceNamed(ctx, c, in.DataSourceID)
	if err != nil {
		return audienceBody{}, err
	}
	made, err := s.Audiences.Create(ctx, c.workspace(), audience.NewAudience{ID: c.newID, DataSourceID: source, Name: in.Name, SQL: in.SQL,
		KeyColumn: in.KeyColumn, EmailColumn: in.EmailColumn, PhoneColumn: in.PhoneColumn, PhoneRegion: in.PhoneRegion,
		PushColumn: in.PushColumn, OptedOutColumn: in.OptedOutColumn})
	return showAudience(made), ofSource(err)
}

func (s *server) getAudience(ctx context.Context, c *call, _ none) (audienceBody, error) {
	found, err := s.Audiences.Get(ctx, c.workspace(), c.id)
	return showAudience(found), err
}

func (s *server) updateAudience(ctx context.Context, c *call, in audiencePatch) (audienceBody, error) {
	p := audience.Patch{Name: in.Name, SQL: in.SQL, KeyColumn: in.KeyColumn, EmailColumn: in.EmailColumn.patched(),
		PhoneColumn: in.PhoneColumn.patched(), PhoneRegion: in.PhoneRegion.patched(), PushColumn: in.PushColumn.patched(),
		OptedOutColumn: in.OptedOutColumn.patched()}
	if in.DataSourceID != nil {
		source, err := s.sourceNamed(ctx, c, *in.DataSourceID)
		if err != nil {
			return audienceBody{}, err
		}
		p.DataSourceID = &source
	}
	changed, err := s.Audiences.Update(ctx, c.workspace(), c.id, c.ifMatch, p, func(ctx context.Context, old audience.Audience) error {
		return s.checkNeeded(ctx, c, old, p)
	})
	if err != nil {
		return audienceBody{}, ofSource(err)
	}
	shown := showAudience(changed)
	shown.Warnings, err = s.FlowReader.MissingColumns(ctx, c.workspace(), c.id)
	if len(shown.Warnings) > 0 && !c.key.Has("flows:read") {
		shown.Warnings = []string{"flows read what is not there any more; which is for keys with flows:read to see"}
	}
	return shown, err
}

func (s *server) deleteAudience(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.usedBy(ctx, c, s.Audiences.Delete(ctx, c.workspace(), c.id))
}

type audienceValidation struct {
	Columns       []audience.Column `json:"columns"`
	EstimatedRows *int64            `json:"estimated_rows"`
	Warnings      []string          `json:"warnings"`
}

func (s *server) validateAudience(ctx context.Context, c *call, in audienceDraft) (audienceValidation, error) {
	source, err := s.sourceNamed(ctx, c, in.DataSourceID)
	if err != nil {
		return audienceValidation{}, err
	}
	found, err := s.Audiences.Validate(ctx, c.workspace(), audience.Draft{DataSourceID: source, SQL: in.SQL, KeyColumn: in.KeyColumn,
		EmailColumn: in.EmailColumn, PhoneColumn: in.PhoneColumn, PhoneRegion: in.PhoneRegion, PushColumn: in.PushColumn,
		OptedOutColumn: in.OptedOutColumn})
	return audienceValidation{Columns: each(found.Columns, column), EstimatedRows: found.EstimatedRows, Warnings: each(found.Warnings, asIs)},
		ofSource(err)
}

type audiencePreview struct {
	Columns   []audience.Column `json:"columns"`
	Rows      [][]any           `json:"rows"`
	Truncated bool              `json:"truncated"`
}

func (s *server) previewAudience(ctx context.Context, c *call, _ none) (audiencePreview, error) {
	rows := c.number("rows")
	if rows == 0 {
		rows = 10
	}
	found, err := s.Audiences.Preview(ctx, c.workspace(), c.id, rows)
	return audiencePreview{Columns: each(found.Columns, column), Rows: append([][]any{}, found.Rows...), Truncated: found.Truncated},
		ofSource(err)
}

type audienceCounts struct {
	Rows      int64            `json:"rows"`
	Sendable  int64            `json:"sendable"`
	SkippedBy map[string]int64 `json:"skipped_by"`
	Truncated bool             `json:"truncated"`
}

func (s *server) countAudience(ctx context.Context, c *call, _ none) (audienceCounts, error) {
	n, err := s.Audiences.Count(ctx, c.workspace(), c.id, lemma.Channel(c.query("channel")))
	return audienceCounts{Rows: n.Rows, Sendable: n.Sendable, Truncated: n.Truncated, SkippedBy: present(map[string]int64{
		notifications.MissingAddress: n.MissingAddress, notifications.InvalidAddress: n.InvalidAddress,
		notifications.DuplicateAddress: n.DuplicateAddress, notifications.TooManyAddresses: n.TooManyAddresses,
		notifications.RowTooLarge: n.RowTooLarge, notifications.Unsubscribed: n.Unsubscribed, notifications.InvalidKey: n.InvalidKey,
	})}, ofSource(err)
}

// sourceNamed reads the data source that a body names.
func (s *server) sourceNamed(ctx context.Context, c *call, text string) (uuid.UUID, error) {
	id, ok := lemma.ParseID(lemma.PrefixDataSource, text)
	if !ok {
		return uuid.Nil, unknownID("/data_source_id", "data source")
	}
	_, err := s.Audiences.GetSource(ctx, c.workspace(), id)
	if lemma.KindOf(err) == lemma.NotFound {
		return uuid.Nil, unknownID("/data_source_id", "data source")
	}
	return id, err
}

// ofSource gives the error of a data source the field at fault: /sql for a query that
// takes too long, /data_source_id for a source that is refused.
func ofSource(err error) error {
	var e *lemma.Error
	if errors.As(err, &e) && e.Code == audience.CodeTimeout {
		slow := *e
		slow.Kind = lemma.Invalid
		slow.Fields = []lemma.Field{{Pointer: "/sql", Code: e.Code, Detail: e.Message + "; make it faster"}}
		return &slow
	}
	if errors.As(err, &e) && e.Code == audience.CodeRefused {
		return blame(err, "/data_source_id")
	}
	return blame(err, "/sql")
}
