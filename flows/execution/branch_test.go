package execution_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
)

// manyBranches is a flow that distributes profiles to four branches by SQL, b0 to b3, and
// to a node without a source. The branches for which hangs is true wait while the orders
// are locked. All enrollments are in one shard.
func (b *bundle) manyBranches(people int, hangs func(i int) bool) uuid.UUID {
	b.T.Helper()
	var arms, nodes strings.Builder
	for i := range 4 {
		sql := fmt.Sprintf("select profile_key from people where profile_key <> 'x%d'", i)
		if hangs(i) {
			sql += " and not exists (select from orders)"
		}
		fmt.Fprintf(&arms, `,{"name":"a%d","weight":1,"next":"b%d"}`, i, i)
		fmt.Fprintf(&nodes, `"b%d":{"type":"branch","data_source_id":"$source","cases":[{"sql":"%s","next":"end"}],"else":"end"},`, i, sql)
	}
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"deal","nodes":{
		"deal":{"type":"split","arms":[{"name":"free","weight":1,"next":"pause"}` + arms.String() + `]},` + nodes.String() +
		`"pause":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	b.RecordOfAll(people, "go")
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	return flow
}

// locked runs do while the orders cannot be read.
func (b *bundle) locked(do func()) {
	b.T.Helper()
	b.Must(pgx.BeginFunc(bg, b.DB, func(tx pgx.Tx) error {
		_, err := tx.Exec(bg, "lock table orders in access exclusive mode")
		do()
		return err
	}))
}

// A source that hangs for many branches costs a chunk one timeout, and not one for each
// branch.
func TestASourceThatHangsUnderManyBranches(t *testing.T) {
	b := setup(t, 40)
	flow := b.manyBranches(40, func(int) bool { return true })
	b.locked(func() {
		if n, err := b.RunOnce(bg); n != 40 || err != nil {
			t.Error(n, err)
		}
	})
	if asked := b.Execution.Sources.Failures(); asked != 1 {
		t.Errorf("a source that hangs is queried for %d branches", asked)
	}
	b.WantCount(0, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node like 'b_'
		and blocked_reason is null`, b.Workspace, flow)
	if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node = 'pause'`, b.Workspace,
		flow); n == 0 {
		t.Error("an enrollment without a source does not advance")
	}
}

// A branch whose query hung before is queried after the others, so that only its own
// profiles wait.
func TestABranchThatHungIsAskedLast(t *testing.T) {
	b := setup(t, 40)
	flow := b.manyBranches(40, func(i int) bool { return i == 0 })
	_ = b.Execution.Sources.Query(bg, lemma.Key("branch/1", string(b.Source[:]), string(flow[:]), "b0#0"),
		func() error { return &lemma.Error{Kind: lemma.Unavailable, Code: audience.CodeUnavailable} })
	b.Execution.Sources.Reopen()
	b.locked(func() {
		if n, err := b.RunOnce(bg); n != 40 || err != nil {
			t.Error(n, err)
		}
	})
	b.WantCount(0, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and blocked_reason is not null
		and node <> 'b0'`, b.Workspace, flow)
	if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and blocked_reason is not null`, b.Workspace,
		flow); n == 0 {
		t.Error("none of the branch that hangs is blocked")
	}
}
