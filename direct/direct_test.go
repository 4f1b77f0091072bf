package direct

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/admission"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/sender"
	"lemma/suppression"
)

// Single requests that arrive together share a batch, and all are sent.
func TestSingleRequestsShareBatches(t *testing.T) {
	b := setup(t)
	d := b.process()
	const n = 100
	tx, err := b.Pool.Begin(context.Background())
	b.Must(err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(context.Background(), `lock table notifications in access exclusive mode`)
	b.Must(err)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			r := b.request("", func(r *Request) { r.To.Address = fmt.Sprintf("a%d@shop.example", i) })
			s, err := d.Send(context.Background(), b.Workspace, r)
			if got := answerOf(s, err); got != accepted {
				t.Error(got)
			}
		})
	}
	b.WaitForLocks(2)
	b.Must(tx.Rollback(context.Background()))
	all.Wait()
	if batches := b.Count(`select count(*) from batches`); batches > n/5 {
		t.Errorf("%d batches of %d requests", batches, n)
	}
	b.work(b.sender())
	b.WantCount(n, `select count(*) from notification_status where status = 'sent'`)
}

// A content of its own is sent as a template is.
func TestInlineContent(t *testing.T) {
	b := setup(t)
	d := b.process()
	var got sender.Message
	b.carrier.Script = func(m sender.Message, _ int) sender.Receipt { got = m; return sender.Receipt{} }
	inline := func(r *Request) {
		r.TemplateID, r.TemplateVersion = nil, 0
		r.Inline = &message.Content{Subject: "Code {{ code }}", Text: "It is {{ code }}."}
		r.Data = map[string]json.RawMessage{"code": json.RawMessage(`"4711"`)}
	}
	b.send(d, b.request("", inline), accepted)
	b.send(d, b.request("", inline), accepted)
	b.work(b.sender())
	if got.Subject != "Code 4711" || got.Text != "It is 4711." {
		t.Errorf("sent: %+v", got)
	}
	b.WantCount(1, `select count(*) from contents where inline is not null`)
}

// What cannot be rendered is refused, and its key stays unlocked.
func TestWhatCannotBeRendered(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.ExecDB(`update customers set name = 'x' || chr(10) || 'y' where id = 'c1'`)
	inline := func(r *Request) {
		r.TemplateID, r.TemplateVersion, r.Inline = nil, 0, &message.Content{Subject: "For {{ name }}", Text: "t"}
	}
	for key, r := range map[string]Request{
		"sent": b.request("sent", inline, func(r *Request) { r.Data = map[string]json.RawMessage{"name": json.RawMessage(`"x\ny"`)} }),
		"of":   b.ofProfile("of", inline),
	} {
		_, err := d.Send(context.Background(), b.Workspace, r)
		if e, ok := errors.AsType[*lemma.Error](err); !ok || e.Code != "template_error" || e.Fields[0].Pointer != "/content/subject" {
			t.Errorf("%s: %v", key, err)
		}
	}
	b.WantCount(0, `select count(*) from notifications`)
	b.WantCount(0, `select count(*) from direct_keys where stored or locked_until > now()`)
}

// Of several addresses of a profile the first is taken, and the others are counted once.
func TestAProfileWithSeveralAddresses(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.ExecDB(`insert into customers values ('c1', 'second@shop.example', 'C1', false), ('c1', 'SECOND@shop.example', 'C1', false),
		('c1', 'no address', 'C1', false), ('c1', 'third@shop.example', 'C1', false)`)
	done, err := d.SendAll(context.Background(), b.Workspace, []Request{b.ofProfile("k"), b.request("address"),
		b.ofProfile("2", func(r *Request) { r.To.ProfileKey = "c2" })})
	b.Must(err)
	for i, want := range []int{2, 0, 0} {
		if done[i].Err != nil || done[i].Others != want {
			t.Errorf("%d: %d others, %v", i, done[i].Others, done[i].Err)
		}
	}
	b.WantCount(3, `select count(*) from notifications`)
	again, err := d.Send(context.Background(), b.Workspace, b.ofProfile("k"))
	if err != nil || !again.Filtered || again.Others != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// A suppressed address is not one that can be sent to, unless it is for marketing and the message
// is not. If all are suppressed, the notification is skipped with the cause of the first.
func TestAProfileWithASuppressedAddress(t *testing.T) {
	const first, second, third = "c1@shop.example", "second@shop.example", "third@shop.example"
	for name, c := range map[string]struct {
		suppressed []suppression.Entry
		marketing  bool
		to, status string
		others     int
	}{
		"none":                          {nil, true, first, "sent", 2},
		"the first":                     {[]suppression.Entry{{Address: first, Cause: "hard_bounce"}}, false, second, "sent", 1},
		"the second":                    {[]suppression.Entry{{Address: second, Cause: "complaint"}}, false, first, "sent", 1},
		"the first two, for marketing":  {[]suppression.Entry{{Address: first}, {Address: second}}, true, third, "sent", 0},
		"the first, not for marketing":  {[]suppression.Entry{{Address: first}}, false, first, "sent", 2},
		"all":                           {[]suppression.Entry{{Address: third}, {Address: second}, {Address: first}}, true, first, "skipped", 0},
		"the first, on another channel": {[]suppression.Entry{{Address: first, Channel: lemma.Push}}, true, first, "sent", 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.ExecDB(`insert into customers values ('c1', $1, 'C1', false), ('c1', $2, 'C1', false)`, second, third)
			for _, e := range c.suppressed {
				e.ID, e.Cause, e.Channel = lemma.NewID(), cmp.Or(e.Cause, "manual"), cmp.Or(e.Channel, lemma.Email)
				_, _, err := suppression.New(b.Pool).Add(context.Background(), b.Workspace, e)
				b.Must(err)
			}
			transactional := !c.marketing
			done, err := b.process().Send(context.Background(), b.Workspace, b.ofProfile("", func(r *Request) {
				r.Transactional, r.Email.Headers = &transactional, map[string]string{"List-Unsubscribe": "<mailto:stop@shop.example>"}
			}))
			b.Must(err)
			b.work(b.sender())
			n, err := b.Ledger.Get(context.Background(), b.Workspace, done.Notification.OriginID, done.Notification.Key)
			if err != nil || *n.Address != c.to || n.Status != c.status || done.Others != c.others {
				t.Errorf("%s is %s, %d others, %v", *n.Address, n.Status, done.Others, err)
			}
		})
	}
}

// A request that is repeated after its answer was lost, with the same id, is stored once.
func TestARequestIsStoredOnce(t *testing.T) {
	b := setup(t)
	d := b.process()
	r := b.request("")
	first := b.send(d, r, accepted)
	r.Again = true
	if again := b.send(d, r, accepted); again.Key != first.Key {
		t.Errorf("again: %v", again)
	}
	b.WantCount(1, `select count(*) from notifications`)
}

// A deadline that has passed skips the notification.
func TestADeadline(t *testing.T) {
	b := setup(t)
	d := b.process()
	past := time.Now().Add(-time.Hour)
	n := b.send(d, b.request("k", func(r *Request) { r.ExpiresAt = &past }), accepted)
	_, err := b.sender().Sweep(context.Background())
	b.Must(err)
	now, err := b.Ledger.Get(context.Background(), b.Workspace, n.OriginID, n.Key)
	if err != nil || now.Status != "skipped" || *now.Reason != notifications.Expired || b.calls() != 0 {
		t.Errorf("it is %v, %v", now, err)
	}
}

// Rows of a batch are cancelled one by one, and the others are sent.
func TestCancelOne(t *testing.T) {
	b := setup(t)
	d, s := b.process(), b.sender()
	later := time.Now().Add(time.Hour)
	var all []Request
	for i := range 10 {
		all = append(all, b.request(fmt.Sprint(i), func(r *Request) { r.SendAt, r.To.Address = &later, fmt.Sprintf("a%d@shop.example", i) }))
	}
	done, err := d.SendAll(context.Background(), b.Workspace, all)
	b.Must(err)
	var group sync.WaitGroup
	for _, r := range done[:6] {
		for range 2 {
			group.Go(func() {
				n, err := b.Ledger.CancelOne(context.Background(), b.Workspace, r.Notification.OriginID, r.Notification.Key)
				if err != nil || n.Status != "cancelled" {
					t.Errorf("cancelled: %v %v", n.Status, err)
				}
			})
		}
	}
	group.Wait()
	b.Exec(`update batches set due_at = now()`)
	b.work(s)
	b.WantCount(1, `select count(*) from batches where status = 'done' and sent = 4 and cancelled = 6 and size = 10`)
	b.WantCount(4, `select count(*) from notification_status where status = 'sent'`)
	b.WantCount(6, `select count(*) from notification_status where status = 'cancelled' and attempts = 0 and reason = 'cancelled'`)
	sent := done[9].Notification
	if _, err := b.Ledger.CancelOne(context.Background(), b.Workspace, sent.OriginID, sent.Key); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("a cancel of a sent one: %v", err)
	}
	b.send(d, b.request("0", func(r *Request) { r.SendAt = &later }), filtered)
}

// A provider whose notifications wait is not deleted, also beside a request.
func TestAProviderInUse(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.send(d, b.request(""), accepted)
	if err := b.Providers.Delete(context.Background(), b.Workspace, b.Provider); lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("deleted: %v", err)
	}
	b.work(b.sender())
	b.Must(b.Providers.Delete(context.Background(), b.Workspace, b.Provider))
	if _, err := d.Send(context.Background(), b.Workspace, b.request("")); err == nil { // its content is remembered for a moment
		t.Error("sent over a deleted provider")
	}
	b.WantCount(1, `select count(*) from batches`)
}

// What was deleted meanwhile refuses the requests that name it, and not those that are stored
// with them, in one transaction. Their keys are free at once.
func TestWhatIsDeletedRefusesItsOwnRequests(t *testing.T) {
	b := setup(t)
	ctx := context.Background()
	d, topics := b.process(), suppression.New(b.Pool)
	topic, err := topics.CreateTopic(ctx, b.Workspace, suppression.NewTopic{ID: lemma.NewID(), Name: "News"})
	b.Must(err)
	template, err := b.Templates.Create(ctx, b.Workspace,
		message.NewTemplate{ID: lemma.NewID(), Name: "gone", Content: message.Content{Subject: "s", Text: "t"}})
	b.Must(err)
	provider, audience := b.NewProvider("scripted"), b.NewAudience(b.Source, "select id, email, name from customers")
	deletions := []func() error{func() error { return b.Providers.Delete(ctx, b.Workspace, provider) },
		func() error { return topics.DeleteTopic(ctx, b.Workspace, topic.ID) },
		func() error { return b.Templates.Delete(ctx, b.Workspace, template.ID) },
		func() error { return b.Audiences.Delete(ctx, b.Workspace, audience) }}
	tries := 0
	d.Hook = func(_ context.Context, at string) {
		if at == "storing" {
			if tries < len(deletions) { // one after the other
				b.Must(deletions[tries]())
			}
			tries++
		}
	}
	ofTemplate := func(r *Request) { r.TemplateID = &template.ID }
	all, err := d.SendAll(ctx, b.Workspace, []Request{b.request("a"),
		b.ofProfile("b", func(r *Request) { r.ProviderID = &provider }),
		b.request("c", func(r *Request) {
			r.Topic, r.Email.Headers = &topic.ID, map[string]string{"List-Unsubscribe": "<mailto:stop@shop.example>"}
		}), b.ofProfile("d"), b.request("e", ofTemplate), b.ofProfile("f", func(r *Request) { r.To.AudienceID = &audience })})
	b.Must(err)
	for i, want := range []string{"", "a provider was deleted", "a topic was deleted", "", "must be a template",
		"an audience was deleted"} {
		if err := all[i].Err; (err == nil) != (want == "") || err != nil && !strings.Contains(fmt.Sprintf("%+v", err), want) {
			t.Errorf("request %d: %v, want %q", i, err, want)
		}
	}
	b.WantCount(2, `select count(*) from notifications`)
	b.WantCount(1, `select count(distinct xmin::text) from notifications`)
	later := b.process() // which has the template in memory
	later.Hook = func(_ context.Context, at string) {
		if at == "storing" {
			t.Error("a request with a deleted template is stored")
		}
	}
	if got := answerOf(later.Send(ctx, b.Workspace, b.request("f", ofTemplate))); !strings.HasPrefix(got, refused) {
		t.Errorf("a deleted template: %s", got)
	}
	b.send(b.process(), b.ofProfile("b"), accepted)
}

// The sender reads the profiles of an audience again before the call.
func TestRecheck(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.send(d, b.ofProfile(""), accepted)
	content := pgtest.One[uuid.UUID](t, b.Pool, `select content_id from batches`)
	var now []string
	found, err := d.Recheck(context.Background(), b.Workspace, content, []string{"c1", "gone"},
		func(r audience.Row) error { now = append(now, r.Key); return nil })
	if err != nil || !found || !slices.Equal(now, []string{"c1"}) {
		t.Errorf("read again: %v %v %v", now, found, err)
	}
}

// A workspace that requests contents which take long to prepare has a few slots, and others
// have theirs: the rest of its requests wait, and are refused after a while.
func TestRequestsArePreparedInSlots(t *testing.T) {
	b := setup(t)
	d := b.process()
	type big struct{}
	ctx := context.WithValue(context.Background(), big{}, true)
	entered, free := make(chan struct{}, 100), make(chan struct{})
	d.Hook = func(ctx context.Context, at string) {
		if at == "preparing" && ctx.Value(big{}) != nil {
			entered <- struct{}{}
			<-free
		}
	}
	var all sync.WaitGroup
	for range limitsOfPrepares.Workspace {
		all.Go(func() {
			s, err := d.Send(ctx, b.Workspace, b.request(""))
			if got := answerOf(s, err); got != accepted {
				t.Error(got)
			}
		})
		<-entered
	}
	bulk := []Request{b.request(""), b.request("")}
	_, err := d.SendAll(ctx, b.Workspace, bulk)
	if !admission.IsOverloaded(err) || len(entered) > 0 {
		t.Errorf("the bulk has %v, and %d more were prepared", err, len(entered))
	}
	if _, err := d.Send(context.Background(), lemma.NewID(), b.request("")); err == nil || admission.IsOverloaded(err) {
		t.Errorf("the request of another workspace waits: %v", err)
	}
	close(free)
	all.Wait()
	b.WantCount(limitsOfPrepares.Workspace, `select count(*) from notifications`)
}
