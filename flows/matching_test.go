package flows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// manyBranches is a flow that deals people to four branches by SQL, b0 to b3,
// and to a node that needs no source. Those of which hangs is true wait for who
// locks the orders, and all people are of one turn.
func (b *bundle) manyBranches(people int, hangs func(i int) bool) uuid.UUID {
	b.t.Helper()
	var arms, nodes strings.Builder
	for i := range 4 {
		sql := fmt.Sprintf("select profile_key from people where profile_key <> 'x%d'", i)
		if hangs(i) {
			sql += " and not exists (select from orders)"
		}
		fmt.Fprintf(&arms, `,{"name":"a%d","weight":1,"next":"b%d"}`, i, i)
		fmt.Fprintf(&nodes, `"b%d":{"type":"branch","data_source_id":"$source","cases":[{"sql":"%s","next":"end"}],"else":"end"},`, i, sql)
	}
	flow := b.live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"deal","nodes":{
		"deal":{"type":"split","arms":[{"name":"free","weight":1,"next":"pause"}` + arms.String() + `]},` + nodes.String() + `"pause":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	b.allTell(people, "go")
	b.run(b.pool, `update enrollments set turn = 0 where workspace_id = $1`, b.ws)
	return flow
}

// locked does something while nobody can read the orders.
func (b *bundle) locked(do func()) {
	b.t.Helper()
	b.must(pgx.BeginFunc(bg, b.shop, func(tx pgx.Tx) error {
		_, err := tx.Exec(bg, "lock table orders in access exclusive mode")
		do()
		return err
	}))
}

// A source that hangs under many branches costs a lot one wait, and not one for
// each of them.
func TestASourceThatHangsUnderManyBranches(t *testing.T) {
	b := setup(t, 40)
	flow := b.manyBranches(40, func(int) bool { return true })
	b.locked(func() {
		if n, err := b.RunOnce(bg); n != 40 || err != nil {
			t.Error(n, err)
		}
	})
	asked := 0
	for _, s := range b.sources.states {
		asked += s.failures
	}
	if asked != 1 {
		t.Errorf("%d branches are asked of a source that hangs", asked)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node like 'b_' and trouble is null`, flow); n != 0 {
		t.Errorf("%d are not put off", n)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node = 'pause'`, flow); n == 0 {
		t.Error("who needs no source does not go on")
	}
}

// A branch whose query hung before is asked after the others, so that it is
// only its own people who wait.
func TestABranchThatHungIsAskedLast(t *testing.T) {
	b := setup(t, 40)
	flow := b.manyBranches(40, func(i int) bool { return i == 0 })

	b.sources.of(lemma.Key("branch/1", string(b.source[:]), string(flow[:]), caseKey("b0", 0))).failures = 1
	b.locked(func() {
		if n, err := b.RunOnce(bg); n != 40 || err != nil {
			t.Error(n, err)
		}
	})
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and trouble is not null and node <> 'b0'`, flow); n != 0 {
		t.Errorf("%d of other branches are put off", n)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and trouble is not null`, flow); n == 0 {
		t.Error("nobody of the branch that hangs is")
	}
}

// However many branches a source answers, each after a while, a lot ends within
// its lease: after ten seconds those that are left come later.
func TestBranchesOfOneWalkAreBoundedInTime(t *testing.T) {
	t.Parallel()
	source, other := lemma.NewID(), lemma.NewID()
	s := silence{begun: time.Now().Add(-askedFor / 2), of: map[uuid.UUID]error{}}
	if s.heard(source, nil); s.of[source] != nil {
		t.Error("a source that answers is left after half the time")
	}
	s.begun = s.begun.Add(-askedFor)
	if s.heard(source, nil); troubleOf(s.of[source]) != "source_busy" || s.of[other] != nil {
		t.Errorf("%v", s.of)
	}
}
