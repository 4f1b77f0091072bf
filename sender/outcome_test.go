package sender

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// A commit writes the outcomes of its rows, whether all have the same values or not.
func TestACommitWritesTheOutcomeOfEachRow(t *testing.T) {
	same := func(int) outcome {
		return outcome{kind: string(Accepted), basis: "response", code: 250, carrierID: "Q", detail: "ok"}
	}
	for name, of := range map[string]func(i int) outcome{
		"all the same": same,
		"all without details": func(int) outcome {
			return outcome{kind: string(Rejected), basis: "response", reason: "recipient_rejected"}
		},
		"all skipped": func(int) outcome { return outcome{kind: skipped, basis: "gate", reason: "expired"} },
		"the last differs": func(i int) outcome {
			if i < 3 {
				return same(i)
			}
			return outcome{kind: skipped, basis: "gate", reason: "template_error"}
		},
		"each differs": func(i int) outcome {
			return outcome{kind: []string{string(Accepted), string(Rejected), skipped, refused}[i], basis: "response", code: 250 + i,
				reason: fmt.Sprint("r", i), carrierID: fmt.Sprint("Q", i), detail: fmt.Sprint("d", i)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ref := b.insert(4, 4, 2)[0]
			s := b.sender()
			c, w := b.claimed(s, ref)
			b.commits(s, c, nil, opening(c, w), open)
			var done []outcome
			var want []string
			skips := map[string]int{}
			for i := range 4 {
				o := of(i)
				o.ordinal = c.rows[i].Ordinal
				done = append(done, o)
				want = append(want, fmt.Sprintf("%d|%s|%s|%s|%d|%s|%s", o.ordinal, o.kind, o.basis, o.reason, o.code, o.carrierID, o.detail))
				if o.kind == skipped {
					skips[o.reason]++
				}
			}
			b.commits(s, c, done, ending{state: stateDone}, open)
			rows, _ := b.Pool.Query(bg, `
				select concat_ws('|', ordinal, outcome, basis, coalesce(reason, ''), coalesce(code, 0), coalesce(carrier_id, ''), coalesce(detail, ''))
				from attempts where workspace_id = $1 order by ordinal`, b.Workspace)
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			b.Must(err)
			slices.Sort(want)
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			var stored map[string]int
			b.Must(b.Pool.QueryRow(bg, `select skips from batches where workspace_id = $1`, b.Workspace).Scan(&stored))
			if d := cmp.Diff(skips, stored); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAColumnOfOneValueHasItOnce(t *testing.T) {
	for _, c := range [][2][]int16{{{}, {}}, {{5}, {5}}, {{5, 5, 5}, {5}}, {{5, 5, 6, 5}, {5, 5, 6, 5}}, {{6, 5}, {6, 5}}} {
		done := make([]outcome, len(c[0]))
		for i, n := range c[0] {
			done[i].code = int(n)
		}
		if got := column(done, func(o *outcome) int16 { return int16(o.code) }); !slices.Equal(got, c[1]) || got == nil {
			t.Errorf("%v: %v", c[0], got)
		}
	}
}
