package audience

import (
	"testing"
	"time"
)

func TestParametersOfAPeriod(t *testing.T) {
	t.Parallel()
	p := Period{time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC), time.Date(2026, 3, 2, 9, 0, 0, 5000, time.FixedZone("", 3600))}
	from, to := "timestamptz '2026-03-01 09:00:00.000000+00'", "timestamptz '2026-03-02 08:00:00.000005+00'"
	for sql, want := range map[string]string{
		"select id from t where at >= :started_at and at < :cut_off_at": "select id from t where at >= " + from + " and at < " + to,
		"select id from t where at<:cut_off_at::timestamp":              "select id from t where at<" + to + "::timestamp",
		"select id::cut_off_at from t":                                  "",
		"select ':cut_off_at', \":cut_off_at\", $$:cut_off_at$$":        "",
		"select id -- :cut_off_at\n /* :cut_off_at */ from t":           "",
		"select :cut_off_ats, :other, 1:":                               "",
	} {
		got, found := p.bound(Postgres, sql)
		if want == "" && (got != sql || found) || want != "" && (got != want || !found) {
			t.Errorf("%s becomes %s, %t", sql, got, found)
		}
	}
	if got, found := p.bound(MySQL, "select id from t # :cut_off_at\n where `:x` < :cut_off_at"); !found ||
		got != "select id from t # :cut_off_at\n where `:x` < timestamp '2026-03-02 08:00:00.000005'" {
		t.Error(got)
	}
}
