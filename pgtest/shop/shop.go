// Package shop makes what campaigns and flows need, in a [pgtest.Shop]: a data source
// of the customer's database, an audience, a template and a provider.
package shop

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/secrets"
)

// Fixture is a shop, with the packages that have its data.
type Fixture struct {
	pgtest.Shop
	Key       string // of Box
	Box       *secrets.Box
	Ledger    *notifications.Ledger
	Audiences *audience.Audiences
	Templates *message.Templates
	Providers *providers.Providers

	Source, Audience, Template, Provider uuid.UUID // of Fill
}

// Local are the limits of audiences on this machine.
var Local = audience.Options{AllowPrivate: true, AllowUnix: true, FetchTimeout: 2 * time.Second, LookupTimeout: 2 * time.Second}

// New makes the packages for a shop. check may be nil.
func New(s pgtest.Shop, sources audience.Options, check providers.Check) *Fixture {
	s.T.Helper()
	f := &Fixture{Shop: s, Key: secrets.NewKey()}
	var err error
	f.Box, err = secrets.ParseKeys(f.Key)
	f.Must(err)
	f.Ledger, f.Templates, f.Providers = notifications.New(f.Pool), message.New(f.Pool), providers.New(f.Pool, f.Box, check)
	f.Audiences = f.NewAudiences(sources)
	return f
}

// NewAudiences are the same audiences with other limits.
func (f *Fixture) NewAudiences(o audience.Options) *audience.Audiences {
	a := audience.New(f.Pool, f.Box, o)
	f.T.Cleanup(a.Close)
	return a
}

// Fill makes an audience of the customer's database, a template and a provider.
func (f *Fixture) Fill(sql string) {
	f.T.Helper()
	f.Source = f.NewSource(f.DSN)
	f.Audience = f.NewAudience(f.Source, sql)
	f.Template = f.NewTemplate(message.Content{Subject: "Hi {{ name }}", HTML: "<p>Hi {{ name }}</p>"})
	f.Provider = f.NewProvider("smtp")
}

// NewSource makes a data source.
func (f *Fixture) NewSource(dsn string) uuid.UUID {
	f.T.Helper()
	s, err := f.Audiences.CreateSource(f.T.Context(), f.Workspace,
		audience.NewSource{ID: lemma.NewID(), Name: name(), Kind: audience.Postgres, DSN: dsn})
	f.Must(err)
	return s.ID
}

// NewAudience makes an audience with the columns id, email and, if the SQL names it,
// opted_out.
func (f *Fixture) NewAudience(source uuid.UUID, sql string) uuid.UUID {
	f.T.Helper()
	n := audience.NewAudience{ID: lemma.NewID(), DataSourceID: source, Name: name(), SQL: sql, KeyColumn: "id", EmailColumn: "email"}
	if strings.Contains(sql, "opted_out") {
		n.OptedOutColumn = "opted_out"
	}
	a, err := f.Audiences.Create(f.T.Context(), f.Workspace, n)
	f.Must(err)
	return a.ID
}

// NewTemplate makes a template.
func (f *Fixture) NewTemplate(c message.Content) uuid.UUID {
	f.T.Helper()
	t, err := f.Templates.Create(f.T.Context(), f.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: name(), Content: c})
	f.Must(err)
	return t.ID
}

func name() string { return uuid.NewString() }
