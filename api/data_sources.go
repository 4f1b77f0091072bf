package api

import (
	"context"
	"time"

	"lemma"
	"lemma/audience"
	"lemma/audience/value"
)

type dataSourceBody struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Kind      string     `json:"kind"`
	Address   string     `json:"address"`
	Status    string     `json:"status"`
	TestedAt  *time.Time `json:"tested_at"`
	TestError *string    `json:"test_error"`
	Warnings  []string   `json:"warnings"`
	Revoke    []string   `json:"revoke"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	version   int
}

func (b dataSourceBody) etag() int        { return b.version }
func (b dataSourceBody) location() string { return "/v1/data_sources/" + b.ID }

func showDataSource(d audience.Source) dataSourceBody {
	return dataSourceBody{ID: lemma.FormatID(lemma.PrefixDataSource, d.ID), Name: d.Name, Kind: d.Kind, Address: d.Address, Status: d.Status,
		TestedAt: utc(d.TestedAt), TestError: orNull(d.TestError), Warnings: each(d.AllWarnings(), asIs),
		Revoke: each(d.RoleRevokes, asIs), CreatedAt: d.CreatedAt.UTC(), UpdatedAt: d.UpdatedAt.UTC(), version: d.Version}
}

type newDataSource struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	DSN  string `json:"dsn"`
}

type dataSourcePatch struct {
	Name *string `json:"name"`
	DSN  *string `json:"dsn"`
}

func (s *server) listDataSources(ctx context.Context, c *call, _ none) (list[dataSourceBody], error) {
	found, next, err := s.Audiences.ListSources(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showDataSource)
}

func (s *server) createDataSource(ctx context.Context, c *call, in newDataSource) (dataSourceBody, error) {
	made, err := s.Audiences.CreateSource(ctx, c.workspace(), audience.NewSource{ID: c.newID, Name: in.Name, Kind: in.Kind, DSN: in.DSN})
	return showDataSource(made), blame(err, "/dsn")
}

func (s *server) getDataSource(ctx context.Context, c *call, _ none) (dataSourceBody, error) {
	found, err := s.Audiences.GetSource(ctx, c.workspace(), c.id)
	return showDataSource(found), err
}

func (s *server) updateDataSource(ctx context.Context, c *call, in dataSourcePatch) (dataSourceBody, error) {
	changed, err := s.Audiences.UpdateSource(ctx, c.workspace(), c.id, c.ifMatch, audience.SourcePatch{Name: in.Name, DSN: in.DSN})
	return showDataSource(changed), blame(err, "/dsn")
}

func (s *server) deleteDataSource(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.usedBy(ctx, c, s.Audiences.DeleteSource(ctx, c.workspace(), c.id))
}

type sourceTest struct {
	DataSource    dataSourceBody `json:"data_source"`
	ServerVersion string         `json:"server_version"`
}

// testDataSource reports a failed test as a fault of the DSN, which the caller can
// correct.
func (s *server) testDataSource(ctx context.Context, c *call, _ none) (sourceTest, error) {
	report, err := s.Audiences.TestSource(ctx, c.workspace(), c.id)
	return sourceTest{DataSource: showDataSource(report.Source), ServerVersion: report.Version}, blame(err, "/dsn")
}

func asIs(text string) string { return text }

type sourceSchema struct {
	Tables    []tableBody `json:"tables"`
	Truncated bool        `json:"truncated"`
}

type tableBody struct {
	Schema  string            `json:"schema"`
	Name    string            `json:"name"`
	Columns []tableColumnBody `json:"columns"`
}

type tableColumnBody struct {
	Name     string     `json:"name"`
	Type     value.Type `json:"type"`
	Nullable bool       `json:"nullable"`
}

func (s *server) readSchema(ctx context.Context, c *call, _ none) (sourceSchema, error) {
	found, err := s.Audiences.Schema(ctx, c.workspace(), c.id)
	return sourceSchema{Tables: each(found.Tables, showTable), Truncated: found.Truncated}, blame(err, "/dsn")
}

func showTable(t audience.Table) tableBody {
	column := func(c audience.TableColumn) tableColumnBody { return tableColumnBody(c) }
	return tableBody{Schema: t.Schema, Name: t.Name, Columns: each(t.Columns, column)}
}
