package chaos

import (
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// carrier is a mail server or a gateway. It counts what it receives.
type carrier interface {
	delivered() []delivery
	requests(notification string) (bodies, deferred int)
}

// delivery is a message that a carrier has accepted.
type delivery struct{ notification, recipient string }

// outcome is the outcome of one profile, in Lemma's tables and at the carrier.
type outcome struct {
	Name    string // the notification's public id
	Profile string
	Address string
	Status  string
	Reason  string
	First   string // outcome of attempt 1; empty when there is none
	Second  string
	Basis   string // of the last attempt

	bodies, deferred, copies int // sent bodies, bodies answered with 4xx, and kept messages
}

func (o outcome) String() string {
	return fmt.Sprintf("customer %s <%s> is %s (%s): attempts %q %q by %s, %d bodies of which %d deferred, %d copies",
		o.Profile, o.Address, o.Status, o.Reason, o.First, o.Second, o.Basis, o.bodies, o.deferred, o.copies)
}

// violations are the guarantees that the outcome violates.
func (o outcome) violations() (broken []string) {
	attempts := 0
	for _, outcome := range []string{o.First, o.Second} {
		if outcome != "" && outcome != "skipped" {
			attempts++
		}
	}
	for _, rule := range []struct {
		holds bool
		text  string
	}{
		{slices.Contains([]string{"sent", "failed", "skipped", "orphaned", "cancelled"}, o.Status), "has no end"},
		{o.Status == "sent" || o.Reason != "", "ended without a reason"},
		{o.Status != "sent" || o.copies > 0, "is sent, and the server has no message"},
		{o.copies == 0 || o.Status == "sent" || o.Status == "orphaned", "is not sent, and the server has a message"},
		{o.copies <= 2, "got more than two copies"},
		{o.copies < 2 || o.First == "unknown", "got a second copy although the first attempt was not unknown"},
		{o.Second == "" || o.First == "unknown", "was tried again although the first attempt was not unknown"},
		{o.bodies-o.deferred <= attempts, "had more requests than attempts"},
		{o.Basis != "response" || o.Status != "sent" || o.bodies > o.deferred, "was accepted without a request"},
	} {
		if !rule.holds {
			broken = append(broken, rule.text)
		}
	}
	return broken
}

// outcomes reads the outcomes of all profiles of an origin.
func (h *env) outcomes(id uuid.UUID) []outcome {
	h.t.Helper()
	h.Exec(`analyze notifications, batches, attempts`) // the view is not made for reading a whole origin
	rows, err := h.Pool.Query(h.t.Context(), `
		select s.key, s.profile_key, coalesce(s.address, ''), s.status, coalesce(s.reason, ''),
			coalesce(one.outcome, ''), coalesce(two.outcome, ''), coalesce(two.basis, one.basis, '')
		from notification_status s
		left join attempts one on one.workspace_id = s.workspace_id and one.batch_id = s.batch_id
			and one.ordinal = s.ordinal and one.attempt = 1
		left join attempts two on two.workspace_id = s.workspace_id and two.batch_id = s.batch_id
			and two.ordinal = s.ordinal and two.attempt = 2
		where s.workspace_id = $1 and s.origin_id = $2`, h.Workspace, id)
	h.Must(err)
	copies := map[string]int{}
	for _, d := range h.carrier.delivered() {
		copies[d.notification]++
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o outcome, err error) {
		var key uuid.UUID
		err = row.Scan(&key, &o.Profile, &o.Address, &o.Status, &o.Reason, &o.First, &o.Second, &o.Basis)
		o.Name = lemma.FormatNotificationID(id, key)
		o.copies = copies[o.Name]
		o.bodies, o.deferred = h.carrier.requests(o.Name)
		return o, err
	})
	h.Must(err)
	return all
}

// totals are counts of outcomes.
type totals struct {
	Status  map[string]int
	Skips   map[string]int
	Twice   int // profiles with two copies
	Unknown int // first attempts with the outcome unknown
}

// verify compares the customer's table, Lemma's tables and the mail server for a
// campaign that has ended.
func (h *env) verify(c *customer, id uuid.UUID) totals {
	h.t.Helper()
	h.verifyNotifiedOnce(c, id)
	return h.verifyNotifications(id)
}

// verifyNotifications verifies a campaign without the customer's table, since it
// failed before it had read the whole audience.
func (h *env) verifyNotifications(id uuid.UUID) totals {
	h.t.Helper()
	all := h.outcomes(id)
	sum, wrong := totals{Status: map[string]int{}, Skips: map[string]int{}}, 0
	for _, o := range all {
		sum.add(o)
		for _, fault := range o.violations() {
			if wrong++; wrong <= 10 {
				h.t.Errorf("%s: %v", fault, o)
			}
		}
	}
	if wrong > 10 {
		h.t.Errorf("and %d more violations", wrong-10)
	}
	h.verifyRecipients(id, all)
	h.verifyCounts(id, sum)
	h.t.Logf("%d profiles: %v, skipped %v, %d first attempts unknown, %d with two copies",
		len(all), sum.Status, sum.Skips, sum.Unknown, sum.Twice)
	return sum
}

func (t *totals) add(o outcome) {
	t.Status[o.Status]++
	if o.Status == "skipped" {
		t.Skips[o.Reason]++
	}
	if o.copies == 2 {
		t.Twice++
	}
	if o.First == "unknown" {
		t.Unknown++
	}
}

// verifyNotifiedOnce verifies that each profile of the customer has one notification.
func (h *env) verifyNotifiedOnce(c *customer, id uuid.UUID) {
	h.t.Helper()
	rows, err := c.DB.Query(h.t.Context(), `select id::text from people`)
	h.Must(err)
	people, err := pgx.CollectRows(rows, pgx.RowTo[string])
	h.Must(err)
	rows, err = h.Pool.Query(h.t.Context(), `select profile_key from notifications where workspace_id = $1 and origin_id = $2`, h.Workspace,
		id)
	h.Must(err)
	profiles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	h.Must(err)
	slices.Sort(people)
	slices.Sort(profiles)
	if diff := cmp.Diff(people, profiles); diff != "" {
		h.t.Errorf("profiles of the customer (-) and profiles with a notification (+):\n%.2000s", diff)
	}
}

// verifyRecipients verifies that each message of the campaign at the carrier
// belongs to one of its notifications and went to its address.
func (h *env) verifyRecipients(id uuid.UUID, all []outcome) {
	h.t.Helper()
	addresses := map[string]string{}
	for _, o := range all {
		addresses[o.Name] = o.Address
	}
	for _, d := range h.carrier.delivered() {
		origin, _, ok := lemma.ParseNotificationID(d.notification)
		if !ok || (origin == id && addresses[d.notification] != d.recipient) {
			h.t.Errorf("message %s of %q went to %s", d.notification, addresses[d.notification], d.recipient)
		}
	}
}

// verifyCounts verifies that the counts of the API are the sums of the outcomes.
func (h *env) verifyCounts(id uuid.UUID, sum totals) {
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
		h.t.Errorf("outcomes (-) and counts (+):\n%s", diff)
	}
	if !b.Balanced || b.Audience != audience {
		h.t.Errorf("the counts are not balanced: %+v", b)
	}
}
