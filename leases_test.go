package lemma_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tokenColumns are the columns that fence writes, of tables whose lease is not
// called leased_by.
var tokenColumns = map[string]string{"idempotency_keys": "locked_by", "iterations": "evaluating_by"}

// tooFarAhead is the reason of the repairs of package clock.
const tooFarAhead = "a lease that is further ahead than any that is set; it ends no earlier than one that is renewed now"

// unfenced are the statements that write to a table with a lease without a token
// in their WHERE clause, each with the reason why that is right. The key is
// package.function or package.constant, and the table.
var unfenced = map[string]string{
	"campaigns.acquire fanouts":                "acquires the lease if it is free; endExpired ends one that has expired",
	"campaigns.restartFanout fanouts":          "the fan-out of the sample has finished and has no holder; a decision reads it again",
	"campaigns.startIteration iterations":      "the campaign starts; only of a draft, which no process evaluates",
	"campaigns.sampled iterations":             "only of a sample that is being written, which no process evaluates",
	"campaigns.beginDeal iterations":           "only of an iteration that is decided",
	"campaigns.completeIteration iterations":   "only of an iteration without an evaluation",
	"campaigns.cancelIteration iterations":     "a cancel ends the claim of an evaluation, which finds that at its commit",
	"campaigns.saveExperiment iterations":      "only of a draft",
	"campaigns.claimEvaluation iterations":     "acquires the claim if it is free or has expired",
	"campaigns.byPerson iterations":            "acquires the claim if it is free or has expired",
	"campaigns.checkGuardrail iterations":      "acquires the claim if it is free or has expired",
	"campaigns.restartSample fanouts":          "a variant is stopped: the holder finds at its next chunk that it has lost its lease",
	"campaigns.Extend iterations":              "the cut-off of an iteration that is not evaluated; no check of its guardrail reads it",
	"webhooks.readReady outbox":                "only the mark that a retry is due, which no holder reads",
	"webhooks.wakeInTurn outbox":               "as readReady",
	"webhooks.Resend outbox":                   "only of a message that has ended, which no process leases",
	"webhooks.ResendAll outbox":                "only of messages that have ended, which no process leases",
	"campaigns.SeedCutOff iterations":          "benchmarks; only of an iteration that no process evaluates",
	"campaigns.measureOne iterations":          "when the results are measured next",
	"sender.putOff batches":                    "only of a ready batch, which has no holder",
	"sender.claimBatch batches":                "acquires the lease of a ready batch, which has no holder",
	"flows.claimShard flow_shards":             "acquires the lease if it is free or has expired",
	"flows.claimMove flow_moves":               "acquires the lease if it is free or has expired",
	"flows/intake.claimPoll flow_polls":        "acquires the lease if it is free or has expired",
	"webhooks.lease outbox":                    "acquires the lease of messages that claim and claimMore have locked: free, or expired",
	"api/idempotency.Claim idempotency_keys":   "acquires the key if it is free or its lock has expired",
	"sender.endLease batches":                  "the reaper: lockStale has locked the row with its expired lease in the same transaction",
	"notifications.cancelOne batches":          "only of a ready batch, which has no holder",
	"sender.expire batches":                    "only of a ready batch, which has no holder",
	"sender.makeNextDue batches":               "only of a ready batch, which has no holder",
	"sender.enqueueAgain batches":              "only the time of the last job; of a ready batch, which has no holder",
	"notifications.Hold batches":               "a pause: the gate, which a holder reads at its next commit",
	"notifications.unhold batches":             "a resume: the gate, which a holder reads at its next commit",
	"notifications.cancelBatches batches":      "a cancel: the gate, and the status of batches without a holder",
	"notifications.write batches":              "only of a batch that the same transaction has ended, so that it has no holder",
	"flows.endMoves flow_moves":                "a later order ends the earlier one; the holder finds that at its next write",
	"flows.followStatus flow_shards":           "the bound, which no lease protects: whether the flow advances",
	"flows/enrollment.LowerBounds flow_shards": "the bound, which no lease protects: its lock does",
	"flows/enrollment.RaiseBounds flow_shards": "the bound, which no lease protects: its lock does",
	"flows.release flow_shards":                "the end of a pause: the released enrollments, which no holder writes during the pause",
	"flows.listen flow_polls":                  "publishing: the time of the next poll, or none; a holder finds that at its next write",
	"flows.retryPolls flow_polls":              "only of polls without a holder: when they are polled next",
	"blobs.Register blobs":                     "ends an attempt whose lease has expired, and begins one",
	"blobs.Publish blobs":                      "only of committed content, which has no holder",
	"blobs.Drop blobs":                         "a cancel or a deletion ends attempts; the holder finds that at its commit",
	"blobs.endExpired blobs":                   "only of attempts whose lease has expired",
	"blobs.takeEnded blobs":                    "only of attempts that have ended",
	"blobs.clean blobs":                        "only of attempts that have ended",
	"webhooks.Erase outbox":                    "a profile is erased: only of messages without a holder",
	"webhooks.cleanMessages outbox":            "only of messages that have ended",
	"api/idempotency.purge idempotency_keys":   "only of keys whose lock has expired",
	"blobs.Repairs blobs":                      tooFarAhead,
	"campaigns.repairFanouts fanouts":          tooFarAhead,
	"campaigns.repairIterations iterations":    tooFarAhead,
	"flows.repairShards flow_shards":           tooFarAhead,
	"flows.repairMoves flow_moves":             tooFarAhead,
	"flows.repairPolls flow_polls":             tooFarAhead,
	"sender.repairLeases batches":              tooFarAhead,
	"webhooks.repairDue outbox":                tooFarAhead,
	"sender.makeDue batches":                   "only of a ready batch, which has no holder",
	"webhooks.repairWaits outbox":              "only of a message that waits for its next call, which has no holder",
}

// forHolder are functions that change other tables for the holder of a lease: the
// same function checks the token in the same transaction.
var forHolder = map[string]string{
	"campaigns.fail":    "fanouts",
	"flows.moveAway":    "flow_moves",
	"flows.finishMove":  "flow_moves",
	"sender.commitText": "batches",
}

// SendingEngine!OnlyOwnerCommits, Campaign!FailedMeansUnread: every write of
// the holder of a lease repeats its token.
func TestEveryWriteOfALeaseHolderIsFenced(t *testing.T) {
	t.Parallel()
	leased := leasedTables(t)
	if len(leased) < 7 {
		t.Fatalf("the schema has only these tables with a lease: %v", leased)
	}
	known := map[string]bool{}
	fenced := map[string]bool{}
	for _, r := range packages(t) {
		if slices.Contains(forTests, r.name()) {
			continue
		}
		for _, file := range r.GoFiles {
			source, err := os.ReadFile(filepath.Join(r.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range leaseWrites(t, r.name(), source, leased) {
				switch reason := unfenced[w.key()]; {
				case w.fenced:
					fenced[w.key()] = true
				case reason == "":
					t.Errorf("%s: %s writes to %s without the token of its lease; fence it, or list it in unfenced with a reason",
						file, w.where, w.table)
				}
				known[w.key()] = true
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(unfenced)) {
		if !known[key] {
			t.Errorf("unfenced has %q, which is not a statement", key)
		}
	}
	for where, table := range forHolder {
		if !fenced[where+" "+table] {
			t.Errorf("%s writes for the holder of a lease on %s without checking its token", where, table)
		}
	}
}

// leasedTables are the tables with a lease, and the column that fences it.
func leasedTables(t *testing.T) map[string]string {
	t.Helper()
	schema, err := os.ReadFile("migrations/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	leased := maps.Clone(tokenColumns)
	for _, m := range regexp.MustCompile(`(?ms)^create table (\w+) \((.*?)^\)`).FindAllStringSubmatch(string(schema), -1) {
		if regexp.MustCompile(`(?m)^\s*leased_by `).MatchString(m[2]) {
			leased[m[1]] = "leased_by"
		}
	}
	return leased
}

// leaseWrite is a statement that changes or deletes rows of a table with a lease.
type leaseWrite struct {
	where, table string
	fenced       bool
}

func (w leaseWrite) key() string { return w.where + " " + w.table }

func leaseWrites(t *testing.T, pkg string, source []byte, leased map[string]string) (found []leaseWrite) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	collect := func(name string, in ast.Node) {
		for _, sql := range texts(in) {
			for _, w := range writesOf(sql, leased) {
				found = append(found, leaseWrite{pkg + "." + name, w.table, w.fenced})
			}
		}
	}
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			collect(d.Name.Name, d)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					collect(v.Names[0].Name, v)
				}
			}
		}
	}
	return found
}

// texts are the strings of a declaration; concatenated strings are one.
func texts(in ast.Node) (all []string) {
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.ADD {
				all = append(all, joined(n))
				return false
			}
		case *ast.BasicLit:
			all = append(all, text(n))
		}
		return true
	})
	return all
}

func joined(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return joined(e.X) + joined(e.Y)
	case *ast.BasicLit:
		return text(e)
	}
	return " ... "
}

var leaseStatement = regexp.MustCompile(`(?i)\b(update|delete\s+from|insert\s+into)\s+([a-z_]+)`)

func writesOf(sql string, leased map[string]string) (found []leaseWrite) {
	for _, m := range leaseStatement.FindAllStringSubmatchIndex(sql, -1) {
		table := strings.ToLower(sql[m[4]:m[5]])
		column, is := leased[table]
		rest := strings.ToLower(statement(sql[m[5]:]))
		if !is || strings.HasPrefix(strings.ToLower(sql[m[2]:m[3]]), "insert") && !strings.Contains(rest, "do update") {
			continue
		}
		fence := regexp.MustCompile(`\b` + column + `\s*=\s*(\$\d|@token\b|r\.token\b)`) // r: the claims of a chunk, each with its token
		found = append(found, leaseWrite{table: table, fenced: fence.MatchString(condition(rest))})
	}
	return found
}

// statement returns the first statement of a text, which ends at a semicolon or at
// the closing parenthesis around it.
func statement(sql string) string {
	depth := 0
	for i, c := range sql {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth < 0 || c == ';' && depth == 0 {
			return sql[:i]
		}
	}
	return sql
}

// condition is the statement's own WHERE clause.
func condition(sql string) string {
	depth := 0
	for i, c := range sql {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 && regexp.MustCompile(`^\swhere\s`).MatchString(sql[i:]) {
			return sql[i:]
		}
	}
	return ""
}

// The check finds faults.
func TestLeaseRulesFindFaults(t *testing.T) {
	t.Parallel()
	leased := map[string]string{"batches": "leased_by"}
	for sql, want := range map[string]string{
		`update batches set status = 'done' where id = $1 and leased_by = $2`:                                             "[true]",
		`update batches set status = 'done' where id = @batch and leased_by = @token`:                                     "[true]",
		`update batches set status = 'done', leased_by = $2 where id = $1`:                                                "[false]",
		`update batches set status = 'done' where id = $1`:                                                                "[false]",
		`update batches set status = (select 'x' where leased_by = $1)`:                                                   "[false]",
		`with b as (update batches b set x = 1 where id = $1 returning id) select 1 from c where leased_by = $2`:          "[false]",
		`with b as (update batches b set x = f(1) where b.leased_by = $4 returning id) update batches set gate = 'x'`:     "[true false]",
		`update batches b set x = 1 from unnest($1::uuid[]) as r (id, token) where b.id = r.id and b.leased_by = r.token`: "[true]",
		`update batches b set x = 1 from (select r.token from r where leased_by = r.token) r where b.id = r.id`:           "[false]",
		`delete from batches where id = $1`:                                                                               "[false]",
		`insert into batches (id) values ($1)`:                                                                            "[]",
		`insert into batches (id) values ($1) on conflict (id) do update set leased_by = $2`:                              "[false]",
		`select 1 from batches for update of batches`:                                                                     "[]",
	} {
		got := []bool{}
		for _, w := range writesOf(sql, leased) {
			got = append(got, w.fenced)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: fenced %v, want %s", sql, got, want)
		}
	}
	source := "package x\nfunc (c *C) f() { q(`update batches set ` + set + ` where id = $1`) }\n" +
		"const k = `update batches set x = 1 where leased_by = $1`"
	if got := fmt.Sprint(leaseWrites(t, "r", []byte(source), leased)); got != "[{r.f batches false} {r.k batches true}]" {
		t.Errorf("found %s", got)
	}
}
