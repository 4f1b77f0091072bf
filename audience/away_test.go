package audience

import (
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// A source that is away for a moment is no fault of the query, which would fail a campaign at once.
func TestFaultsOfServersThatAreAway(t *testing.T) {
	t.Parallel()
	m := &mysqlSession{link: link{texts: noTexts}}
	for _, c := range []struct {
		number uint16
		state  string
		want   lemma.Kind
	}{
		{1047, "08S01", lemma.Unavailable}, {9001, "HY000", lemma.Unavailable}, {3032, "HY000", lemma.Unavailable},
		{4031, "HY000", lemma.Unavailable}, {2013, "HY000", lemma.Unavailable}, {1040, "08004", lemma.Unavailable},
		{1042, "08S01", lemma.Unavailable}, {1153, "08S01", lemma.Invalid},
		{1114, "HY000", lemma.Unavailable}, {1213, "40001", lemma.Unavailable},
		{1064, "42000", lemma.Invalid}, {1146, "42S02", lemma.Invalid}, {1365, "22012", lemma.Invalid}, {1792, "25006", lemma.Invalid},
	} {
		reported := &mysql.MySQLError{Number: c.number, Message: "m"}
		copy(reported.SQLState[:], c.state)
		if got := m.fault(reported); got.Kind != c.want {
			t.Errorf("%d (%s): %s, want %s", c.number, c.state, got.Kind, c.want)
		}
	}
	for code, want := range map[string]lemma.Kind{"08006": lemma.Unavailable, "HV00N": lemma.Unavailable, "53300": lemma.Unavailable,
		"57P03": lemma.Unavailable, "42601": lemma.Invalid, "22012": lemma.Invalid, "HV005": lemma.Invalid} {
		if got := pgFault(&pgconn.PgError{Code: code, Message: "m"}, noTexts, 0, 0); got.Kind != want {
			t.Errorf("%s: %s, want %s", code, got.Kind, want)
		}
	}
}
