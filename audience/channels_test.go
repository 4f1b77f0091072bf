package audience

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
)

// reached is a query with one address column for each channel.
const reached = `
select * from (values
  ('1', 'a@shop.example', '030 123456', '{t1,t2}'::text[]), ('2', null, '+4930123456', '{t2,null,"  "}'),
  ('3', ' ', null, '{}'), ('4', 'd', '030 x', null)
) v (id, email, phone, tokens)`

func (b bundle) reachable(t *testing.T, sql string, change func(*NewAudience)) (Audience, error) {
	t.Helper()
	n := NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: uuid.NewString(), SQL: sql, KeyColumn: "id"}
	change(&n)
	return b.Create(t.Context(), b.Workspace, n)
}

func TestStreamReadsAddressesOfAllChannels(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x, err := b.reachable(t, reached+" order by 1", func(n *NewAudience) {
		n.EmailColumn, n.PhoneColumn, n.PhoneRegion, n.PushColumn = "email", "phone", "DE", "tokens"
	})
	b.Must(err)
	rows, err := b.collect(t, x.ID, "email")
	want := []Row{
		{Key: "1", Email: "a@shop.example", Phone: "030 123456", Region: "DE", Push: `["t1","t2"]`, Payload: `{"email":"a@shop.example"}`},
		{Key: "2", Phone: "+4930123456", Region: "DE", Push: `["t2",null,"  "]`, Payload: `{"email":null}`},
		{Key: "3", Email: " ", Region: "DE", Push: `[]`, Payload: `{"email":" "}`},
		{Key: "4", Email: "d", Phone: "030 x", Region: "DE", Payload: `{"email":"d"}`},
	}
	if diff := cmp.Diff(want, rows); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for channel, want := range map[lemma.Channel]Counts{
		lemma.Email: {Rows: 4, Sendable: 1, Profiles: 1, MissingAddress: 2, InvalidAddress: 1},
		lemma.SMS:   {Rows: 4, Sendable: 1, Profiles: 1, DuplicateAddress: 1, MissingAddress: 1, InvalidAddress: 1},
		lemma.Push:  {Rows: 5, Sendable: 2, Profiles: 1, DuplicateAddress: 1, MissingAddress: 2},
	} {
		if got, err := b.Audiences.Count(t.Context(), b.Workspace, x.ID, channel); err != nil || got != want {
			t.Errorf("%s: %+v %v, want %+v", channel, got, err, want)
		}
	}
}

func TestTokensOfEachType(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for sql, want := range map[string]string{
		`'a,b'::text`:              `a,b`,
		`'["a"]'::text`:            `["a"]`,
		`'["a",{"b": 1}]'::jsonb`:  `["a", {"b": 1}]`,
		`'"a\"b"'::jsonb`:          `a"b`,
		`'null'::jsonb`:            ``,
		`null::jsonb`:              ``,
		`'{"endpoint":"e"}'::json`: `{"endpoint":"e"}`,
		`array['a','b,c']`:         `["a","b,c"]`,
		`null::text[]`:             ``,
	} {
		x, err := b.reachable(t, "select '1' as id, "+sql+" as tokens", func(n *NewAudience) { n.PushColumn = "tokens" })
		if err != nil {
			t.Fatal(sql, err)
		}
		rows, err := b.collect(t, x.ID)
		if err != nil || len(rows) != 1 || rows[0].Push != want {
			t.Errorf("%s: %v %+v, want %q", sql, err, rows, want)
		}
	}
}

func TestAddressColumnsThatAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for what, c := range map[string]struct {
		change        func(*NewAudience)
		pointer, code string
	}{
		"no column":                {func(*NewAudience) {}, "/email_column", "required"},
		"a region without numbers": {func(n *NewAudience) { n.EmailColumn, n.PhoneRegion = "email", "DE" }, "/phone_region", "not_allowed"},
		"a region that is none":    {func(n *NewAudience) { n.PhoneColumn, n.PhoneRegion = "phone", "XX" }, "/phone_region", "invalid_region"},
		"no such phone column":     {func(n *NewAudience) { n.PhoneColumn = "mobile" }, "/phone_column", CodeQuery},
		"a phone column of a list": {func(n *NewAudience) { n.PhoneColumn = "tokens" }, "/phone_column", CodeQuery},
		"a push column of dates":   {func(n *NewAudience) { n.PushColumn = "day" }, "/push_column", CodeQuery},
	} {
		_, err := b.reachable(t, "select v.*, now() as day from ("+reached+") v", c.change)
		var wrong *lemma.Error
		if !errors.As(err, &wrong) || len(wrong.Fields) != 1 || wrong.Fields[0].Pointer != c.pointer || wrong.Fields[0].Code != c.code {
			t.Errorf("%s: %v", what, err)
		}
	}
}
