package chaos

import (
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// fate is what became of one person, by Lemma's ledger and by the wire.
type fate struct {
	Name    string // the notification's public id
	Profile string
	Address string
	Status  string
	Reason  string
	First   string // outcome of attempt 1; empty when there is none
	Second  string
	Basis   string // of the last attempt

	bodies, turnedDown, copies int // on the wire, and in the catcher's ledger
}

func (f fate) String() string {
	return fmt.Sprintf("customer %s <%s> is %s (%s): attempts %q %q by %s, %d bodies of which %d turned down, %d copies",
		f.Profile, f.Address, f.Status, f.Reason, f.First, f.Second, f.Basis, f.bodies, f.turnedDown, f.copies)
}

// faults are the promises that one fate breaks.
func (f fate) faults() (broken []string) {
	attempts := 0
	for _, outcome := range []string{f.First, f.Second} {
		if outcome != "" && outcome != "skipped" {
			attempts++
		}
	}
	for _, rule := range []struct {
		holds bool
		text  string
	}{
		{slices.Contains([]string{"sent", "failed", "skipped", "orphaned", "cancelled"}, f.Status), "has no end"},
		{f.Status == "sent" || f.Reason != "", "ended without a reason"},
		{f.Status != "sent" || f.copies > 0, "is sent and got nothing"},
		{f.copies == 0 || f.Status == "sent" || f.Status == "orphaned", "got a mail and is said to have none"},
		{f.copies <= 2, "got more than two copies"},
		{f.copies < 2 || f.First == "unknown", "got a second copy although the first attempt was not in doubt"},
		{f.Second == "" || f.First == "unknown", "was tried again although the first attempt was not in doubt"},
		{f.bodies-f.turnedDown <= attempts, "had more requests than attempts"},
		{f.Basis != "response" || f.Status != "sent" || f.bodies > f.turnedDown, "was accepted without a request"},
	} {
		if !rule.holds {
			broken = append(broken, rule.text)
		}
	}
	return broken
}

// fates reads everybody of a campaign.
func (h *house) fates(id uuid.UUID) []fate {
	h.t.Helper()
	h.run(h.pool, `analyze notifications, batches, attempts`) // all at once is not what the view's plan is made for
	rows, err := h.pool.Query(h.t.Context(), `
		select s.key, s.profile_key, coalesce(s.address, ''), s.status, coalesce(s.reason, ''),
			coalesce(one.outcome, ''), coalesce(two.outcome, ''), coalesce(two.basis, one.basis, '')
		from notification_status s
		left join attempts one on one.workspace_id = s.workspace_id and one.batch_id = s.batch_id and one.ordinal = s.ordinal and one.attempt = 1
		left join attempts two on two.workspace_id = s.workspace_id and two.batch_id = s.batch_id and two.ordinal = s.ordinal and two.attempt = 2
		where s.workspace_id = $1 and s.origin_id = $2`, h.ws, id)
	h.must(err)
	copies := map[string]int{}
	for messageID, n := range h.post.Copies() {
		copies[notificationIn(messageID)] = n
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f fate, err error) {
		var key uuid.UUID
		err = row.Scan(&key, &f.Profile, &f.Address, &f.Status, &f.Reason, &f.First, &f.Second, &f.Basis)
		f.Name = lemma.FormatNotificationID(id, key)
		f.copies = copies[f.Name]
		f.bodies, f.turnedDown = h.post.onTheWire(f.Name)
		return f, err
	})
	h.must(err)
	return all
}

// tally is what a judgement counted.
type tally struct {
	Status map[string]int
	Skips  map[string]int
	Twice  int // people with two copies
	Doubts int // first attempts that ended as unknown
}

// judge holds the customer's table, Lemma's ledgers and the mail server's
// against one another, for a campaign that has ended.
func (h *house) judge(c *customer, id uuid.UUID) tally {
	h.t.Helper()
	h.everybodyOnce(c, id)
	return h.judgeWritten(id)
}

// judgeWritten judges without the customer's table: for a campaign that failed
// before it had read everybody.
func (h *house) judgeWritten(id uuid.UUID) tally {
	h.t.Helper()
	all := h.fates(id)
	sum, wrong := tally{Status: map[string]int{}, Skips: map[string]int{}}, 0
	for _, f := range all {
		sum.add(f)
		for _, fault := range f.faults() {
			if wrong++; wrong <= 10 {
				h.t.Errorf("%s: %v", fault, f)
			}
		}
	}
	if wrong > 10 {
		h.t.Errorf("and %d faults more", wrong-10)
	}
	h.nobodyElse(id, all)
	h.booksAgree(id, sum)
	h.t.Logf("%d people: %v, skipped %v, %d first attempts in doubt, %d got two copies", len(all), sum.Status, sum.Skips, sum.Doubts, sum.Twice)
	return sum
}

func (t *tally) add(f fate) {
	t.Status[f.Status]++
	if f.Status == "skipped" {
		t.Skips[f.Reason]++
	}
	if f.copies == 2 {
		t.Twice++
	}
	if f.First == "unknown" {
		t.Doubts++
	}
}

// everybodyOnce: each of the customer's people has one row.
func (h *house) everybodyOnce(c *customer, id uuid.UUID) {
	h.t.Helper()
	rows, err := c.pool.Query(h.t.Context(), `select id::text from people`)
	h.must(err)
	people, err := pgx.CollectRows(rows, pgx.RowTo[string])
	h.must(err)
	rows, err = h.pool.Query(h.t.Context(), `select profile_key from notifications where workspace_id = $1 and origin_id = $2`, h.ws, id)
	h.must(err)
	profiles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	h.must(err)
	slices.Sort(people)
	slices.Sort(profiles)
	if diff := cmp.Diff(people, profiles); diff != "" {
		h.t.Errorf("the customer's people (-) and those with a notification (+):\n%.2000s", diff)
	}
}

// nobodyElse: each mail that bears the campaign's name is one of its
// notifications, and went where that says.
func (h *house) nobodyElse(id uuid.UUID, all []fate) {
	h.t.Helper()
	addresses := map[string]string{}
	for _, f := range all {
		addresses[f.Name] = f.Address
	}
	for _, e := range h.post.Ledger() {
		name := notificationIn(e.MessageID)
		origin, _, ok := lemma.ParseNotificationID(name)
		if !ok || (origin == id && addresses[name] != e.Recipient) {
			h.t.Errorf("a mail %s, which belongs to %q, went to %s", name, addresses[name], e.Recipient)
		}
	}
}

// booksAgree: what the API shows is the sum of what became of everybody.
func (h *house) booksAgree(id uuid.UUID, sum tally) {
	h.t.Helper()
	b := h.campaign(id).Counts
	shown := map[string]int64{"sent": b.Sent, "failed": b.Failed, "skipped": b.Skipped, "orphaned": b.Orphaned, "cancelled": b.Cancelled,
		"pending": b.Pending, "processing": b.Processing}
	found, audience := map[string]int64{}, int64(0)
	for status := range shown {
		found[status] = int64(sum.Status[status])
		audience += found[status]
	}
	if diff := cmp.Diff(found, shown); diff != "" {
		h.t.Errorf("what became of everybody (-) and the books (+):\n%s", diff)
	}
	if !b.Balanced || b.Audience != audience {
		h.t.Errorf("the books do not balance: %+v", b)
	}
}
