package direct

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"lemma"
	"lemma/audience"
	"lemma/flows/admission"
	"lemma/flows/flowstest"
	"lemma/message"
	"lemma/slots"
)

// While an audience is read, a request keeps the data of the first row and little of others,
// however many rows its profile has. The test is not parallel, since it measures memory.
func TestARequestKeepsFewRows(t *testing.T) {
	const rows = 2000
	d := &Direct{data: slots.New(slots.Limits{Process: dataOfProcess, Workspace: dataOfWorkspace}, nil)}
	m := d.newMemory(lemma.NewID())
	to := newRecipient(&request{content: &content{channel: lemma.Email, variables: []string{"big"}}})
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before, addresses := heap(), 0
	for i := range rows {
		row := audience.Row{Email: fmt.Sprintf("p%d@shop.example", i), Payload: `{"big":"` + strings.Repeat("x", 60_000) + `"}`}
		if err := to.add(row, m); err != nil {
			t.Fatal(err)
		}
		if i <= MaxOthers {
			addresses += len(row.Email)
		}
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("%d rows take %d KB", rows, (after-before)>>10)
	}
	to.addresses[0].suppressed, to.addresses[1].suppressed = true, true
	to.choose() // none: the data of the others is not kept
	if to.row.Address != "p0@shop.example" || len(to.row.Payload) != 60_010 || to.others != MaxOthers-1 || m.bytes != 2*60_010+addresses {
		t.Errorf("%s, %d bytes, %d others, %d bytes taken", to.row.Address, len(to.row.Payload), to.others, m.bytes)
	}
}

// The addresses of profiles are bounded too: the tokens of a push service may be long.
func TestTheAddressesOfProfilesAreBounded(t *testing.T) {
	d := &Direct{data: slots.New(slots.Limits{Process: dataOfProcess, Workspace: dataOfWorkspace}, nil)}
	m := d.newMemory(lemma.NewID())
	for i := range 100 {
		to := newRecipient(&request{content: &content{channel: lemma.Push}})
		for j := range MaxOthers {
			token := fmt.Sprintf("%04d%04d", i, j) + strings.Repeat("x", 4000)
			err := to.add(audience.Row{Push: token}, m)
			if lemma.KindOf(err) == lemma.TooLarge {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Errorf("the addresses took %d bytes", m.bytes)
}

// ofLarge is a request that uses 200,000 bytes of data of its profile.
func (b *bundle) ofLarge(key string) Request {
	return b.ofProfile(key, func(r *Request) {
		r.To.ProfileKey, r.TemplateID, r.TemplateVersion = "c2", nil, 0
		r.Inline = &message.Content{Channel: lemma.Email, Subject: "Hi", Text: "{{ name }}"}
	})
}

// The data that requests have of profiles is bounded: a request beyond that is refused,
// stores nothing, and is accepted when others have been stored.
func TestTheDataOfProfilesIsBounded(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.ExecDB(`update customers set name = repeat('x', 200000) where id = 'c2'`)
	of := slots.Resource{Workspace: b.Workspace}
	const others = dataOfWorkspace - 100_000
	if !d.data.Resize(of, 0, others) {
		t.Fatal("no memory")
	}
	r := b.ofLarge("k")
	if _, err := d.Send(context.Background(), b.Workspace, r); !admission.IsOverloaded(err) || lemma.KindOf(err) != lemma.Unavailable {
		t.Errorf("without memory: %v", err)
	}
	if n := flowstest.Counted(d.Metrics.requests.WithLabelValues(admission.CodeOverloaded)); n != 1 {
		t.Errorf("%v refusals are counted", n)
	}
	b.WantCount(0, `select count(*) from notifications`)
	b.send(d, b.ofProfile(""), accepted) // of less data
	d.data.Resize(of, others, 0)
	d.Hook = func(_ context.Context, at string) {
		if n := d.data.Taken(of); at == "storing" && n < 200_000 {
			t.Errorf("while it is stored, %d bytes are taken", n)
		}
	}
	b.send(d, r, accepted)
	if n := d.data.Taken(of); n != 0 {
		t.Errorf("%d bytes are still taken", n)
	}
}

// A bulk whose profiles have more data than one request may have is refused for good.
func TestABulkWithTooMuchDataOfProfiles(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.ExecDB(`update customers set name = repeat('x', 200000) where id = 'c2'`)
	all := []Request{b.request("address", func(r *Request) { r.Data = map[string]json.RawMessage{"name": json.RawMessage(`"Ada"`)} })}
	for i := range MaxProfileData/200_000 + 1 {
		all = append(all, b.ofLarge(fmt.Sprint(i)))
	}
	done, err := d.SendAll(context.Background(), b.Workspace, all)
	b.Must(err)
	for i, r := range done {
		e, _ := errors.AsType[*lemma.Error](r.Err)
		if i == 0 && r.Err != nil || i > 0 && (e == nil || e.Code != audience.CodeLimit || e.Kind != lemma.TooLarge) {
			t.Errorf("item %d: %v", i, r.Err)
		}
	}
	b.WantCount(1, `select count(*) from notifications`)
	b.WantCount(0, `select count(*) from direct_keys where locked_until > now() and not stored`)
	done, err = d.SendAll(context.Background(), b.Workspace, all[:40])
	b.Must(err)
	if err := done[39].Err; err != nil {
		t.Errorf("fewer items: %v", err)
	}
}

// A row that is longer than a source may return fails the items of its profile only.
func TestABulkWithARowThatIsTooLong(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.ExecDB(`insert into customers (id, email, name) select 'n' || i, 'n' || i || '@shop.example', 'Ada' from generate_series(1, 40) i`)
	b.ExecDB(`update customers set name = repeat('x', 1200000) where id in ('n7', 'n31')`)
	var all []Request
	for i := range 40 {
		one := b.ofLarge(fmt.Sprint("k", i))
		one.To.ProfileKey = fmt.Sprint("n", i+1)
		all = append(all, one)
	}
	done, err := d.SendAll(context.Background(), b.Workspace, all)
	b.Must(err)
	for i, r := range done {
		e, _ := errors.AsType[*lemma.Error](r.Err)
		if tooLong := i == 6 || i == 30; tooLong != (e != nil && e.Code == audience.CodeLimit) || !tooLong && r.Err != nil {
			t.Errorf("item %d: %v", i, r.Err)
		}
	}
	b.WantCount(38, `select count(*) from notifications`)
	b.WantCount(0, `select count(*) from direct_keys where locked_until > now() and not stored`)
}
