package suppression_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/page"
	"lemma/pgtest"
	"lemma/suppression"
)

type fixture struct {
	*suppression.Suppressions
	pool      *pgxpool.Pool
	ws, other uuid.UUID
	check     func(m suppression.Message, addresses ...string) map[string]string
}

func setup(t *testing.T) fixture {
	t.Helper()
	t.Parallel()
	pool := pgtest.DB(t)
	f := fixture{Suppressions: suppression.New(pool), pool: pool, ws: pgtest.Workspace(t, pool), other: pgtest.Workspace(t, pool)}
	f.check = func(m suppression.Message, addresses ...string) map[string]string {
		t.Helper()
		if m.Channel == "" {
			m.Channel = lemma.Email
		}
		found, err := suppression.Check(t.Context(), pool, f.ws, m, addresses)
		if err != nil {
			t.Fatal(err)
		}
		causes := map[string]string{}
		for _, s := range found {
			causes[addresses[s.Index]] = s.Cause
		}
		return causes
	}
	return f
}

func (f fixture) add(t *testing.T, address, cause string) suppression.Suppression {
	t.Helper()
	made, _, err := f.Add(t.Context(), f.ws, suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: address, Cause: cause})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// A subscription of a browser is suppressed by its endpoint, in any spelling.
func TestASubscriptionIsSuppressedByItsEndpoint(t *testing.T) {
	f := setup(t)
	if _, _, err := f.Add(t.Context(), f.ws, suppression.Entry{ID: lemma.NewID(), Channel: lemma.Push,
		Address: `{"keys":{},"endpoint":"https://push.example/1"}`, Cause: suppression.Manual}); err != nil {
		t.Fatal(err)
	}
	same, other := `{"endpoint":"https://push.example/1","keys":{}}`, `{"endpoint":"https://push.example/2","keys":{}}`
	found := f.check(suppression.Message{Channel: lemma.Push}, same, other)
	if diff := cmp.Diff(map[string]string{same: suppression.Manual}, found); diff != "" {
		t.Error(diff)
	}
}

// Every cause stops marketing, and only bounces and complaints stop a transactional
// message. Spelling does not matter, workspace and channel do.
func TestCheck(t *testing.T) {
	f := setup(t)
	addresses := map[string]string{}
	for _, cause := range suppression.Causes {
		address := cause + "@example.com"
		addresses[address] = cause
		f.add(t, strings.ToUpper(address), cause)
	}
	all := []string{"free@example.com", "not an address"}
	for address := range addresses {
		all = append(all, address)
	}
	if diff := cmp.Diff(addresses, f.check(suppression.Message{}, all...)); diff != "" {
		t.Error("marketing:", diff)
	}
	delete(addresses, "unsubscribed@example.com")
	delete(addresses, "manual@example.com")
	if diff := cmp.Diff(addresses, f.check(suppression.Message{Transactional: true}, all...)); diff != "" {
		t.Error("transactional:", diff)
	}
	if found := f.check(suppression.Message{Channel: lemma.Push}, all...); len(found) != 0 {
		t.Error("another channel:", found)
	}
	if _, _, err := f.Add(t.Context(), f.other,
		suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: "x", Cause: "manual"}); err == nil {
		t.Error("a text that is no address was added")
	}
}

// A workspace does not see what another has suppressed.
func TestWorkspaces(t *testing.T) {
	f := setup(t)
	made := f.add(t, "ada@example.com", suppression.Manual)
	if _, err := f.Get(t.Context(), f.other, made.ID); lemma.KindOf(err) != lemma.NotFound {
		t.Error("get:", err)
	}
	if err := f.Delete(t.Context(), f.other, made.ID); lemma.KindOf(err) != lemma.NotFound {
		t.Error("delete:", err)
	}
	if found, _, err := f.List(t.Context(), f.other, suppression.Filter{}, page.Query{Limit: 10}); len(found) != 0 || err != nil {
		t.Error("list:", found, err)
	}
	if len(f.check(suppression.Message{}, "ada@example.com")) != 1 {
		t.Error("it is gone")
	}
}

// An address that has two causes stays suppressed until both are deleted, and adding
// one again returns the first.
func TestCausesAreDeletedOneByOne(t *testing.T) {
	f := setup(t)
	bounce, complaint := f.add(t, "ada@example.com", suppression.HardBounce), f.add(t, "Ada@example.com", suppression.Complaint)
	if again := f.add(t, "ADA@example.com", suppression.HardBounce); again.ID != bounce.ID {
		t.Errorf("%v was added beside %v", again, bounce)
	}
	for i, id := range []uuid.UUID{bounce.ID, complaint.ID} {
		if n := len(f.check(suppression.Message{}, "ada@example.com")); n != 1 {
			t.Errorf("after %d deletions: %d", i, n)
		}
		if err := f.Delete(t.Context(), f.ws, id); err != nil {
			t.Fatal(err)
		}
	}
	if found := f.check(suppression.Message{}, "ada@example.com"); len(found) != 0 {
		t.Error(found)
	}
}

func TestTopicsOfAWorkspaceAreBounded(t *testing.T) {
	f := setup(t)
	ctx := t.Context()
	pgtest.Exec(t, f.pool, `insert into topics (workspace_id, id, name)
		select $1, gen_random_uuid(), 'topic ' || i from generate_series(2, $2) i`,
		f.ws, suppression.MaxTopics)
	last, another := suppression.NewTopic{ID: lemma.NewID(), Name: "Last"}, suppression.NewTopic{ID: lemma.NewID(), Name: "Another"}
	for range 2 { // a request that is repeated
		if made, err := f.CreateTopic(ctx, f.ws, last); err != nil || made.Name != "Last" {
			t.Fatal(made, err)
		}
	}
	if _, err := f.CreateTopic(ctx, f.ws, another); lemma.KindOf(err) != lemma.Conflict || !strings.Contains(err.Error(), "5000 topics") {
		t.Errorf("one more: %v", err)
	}
	if p, err := f.Preferences(ctx, f.ws, lemma.Email, "ada@example.com", last.ID); err != nil || p.TopicCount != suppression.MaxTopics ||
		len(p.Topics) != suppression.TopicsPerPage || p.Topics[0].Name != "Last" {
		t.Errorf("%d topics, %d on the first page, %v", p.TopicCount, len(p.Topics), err)
	}
}

func TestTopics(t *testing.T) {
	f := setup(t)
	ctx := t.Context()
	news, err := f.CreateTopic(ctx, f.ws, suppression.NewTopic{ID: lemma.NewID(), Name: "News"})
	if err != nil {
		t.Fatal(err)
	}
	offers, err := f.CreateTopic(ctx, f.ws, suppression.NewTopic{ID: lemma.NewID(), Name: "Offers"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.SetTopic(ctx, f.ws, news.ID, lemma.Email, "Ada@Example.com", false); err != nil {
			t.Fatal(err)
		}
	}
	const ada = "ada@example.com"
	if got := f.check(suppression.Message{TopicID: news.ID}, ada)[ada]; got != suppression.UnsubscribedTopic {
		t.Errorf("of the topic: %q", got)
	}
	for what, m := range map[string]suppression.Message{"another topic": {TopicID: offers.ID}, "no topic": {},
		"transactional": {Transactional: true}} {
		if got := f.check(m, ada); len(got) != 0 {
			t.Errorf("%s: %v", what, got)
		}
	}
	p, err := f.Preferences(ctx, f.ws, lemma.Email, "ADA@example.com", uuid.Nil)
	if err != nil || len(p.Topics) != 2 || p.Topics[0].Subscribed || !p.Topics[1].Subscribed {
		t.Errorf("%+v, %v", p, err)
	}
	if err := f.SetTopic(ctx, f.ws, news.ID, lemma.Email, ada, true); err != nil {
		t.Fatal(err)
	}
	if got := f.check(suppression.Message{TopicID: news.ID}, ada); len(got) != 0 {
		t.Errorf("subscribed again: %v", got)
	}
	if err := f.SetTopic(ctx, f.other, news.ID, lemma.Email, ada, false); lemma.KindOf(err) != lemma.NotFound {
		t.Error("another workspace's topic:", err)
	}
	if _, err := f.CreateTopic(ctx, f.ws, suppression.NewTopic{ID: lemma.NewID(), Name: "News"}); lemma.KindOf(err) != lemma.Conflict {
		t.Error("a name twice:", err)
	}
}

// An address that is suppressed by its key only, since its profile was erased, is stored when the
// customer gives it: an export has it then. What is repeated in a file changes nothing.
func TestAnErasedAddressIsGivenAgain(t *testing.T) {
	f := setup(t)
	for _, text := range []string{"ada@example.com", "bob@example.com", "cy@example.com"} {
		e := suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: text, Cause: suppression.Complaint, KeyOnly: true}
		if _, _, err := f.Add(t.Context(), f.ws, e); err != nil {
			t.Fatal(err)
		}
	}
	got, added, err := f.Add(t.Context(), f.ws, suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: "Ada@example.com",
		Cause: suppression.Complaint})
	if err != nil || added || got.Address != "ada@example.com" {
		t.Errorf("%+v, added: %v, %v", got, added, err)
	}
	done, err := f.Import(t.Context(), f.ws, strings.NewReader("address,cause\nbob@example.com,complaint\nBOB@example.com,complaint\n"+
		"cy@example.com,manual\n"), suppression.Defaults{Channel: lemma.Email, Cause: suppression.Manual})
	if diff := cmp.Diff(suppression.Imported{Read: 3, Added: 1, Known: 2}, done); diff != "" || err != nil {
		t.Error(diff, err)
	}
	stored := pgtest.Column[string](t, f.pool, `select concat_ws(' ', cause, address) from suppressions order by 1`)
	want := []string{"complaint ", "complaint ada@example.com", "complaint bob@example.com", "manual cy@example.com"}
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Error(diff)
	}
}

// Rows of an import are counted, invalid ones are named by their number, and the same
// file again adds nothing.
func TestImport(t *testing.T) {
	f := setup(t)
	file := "\ufeffAddress,cause,detail\nada@example.com,complaint,spam\n\"bob@example.com\",,\nno " +
		"address,,\ncy@example.com,rage,\nBOB@example.com,manual,\n"
	for run, want := range []suppression.Imported{{Read: 5, Added: 2, Known: 1, Invalid: 2}, {Read: 5, Known: 3, Invalid: 2}} {
		got, err := f.Import(t.Context(), f.ws, strings.NewReader(file), suppression.Defaults{Channel: lemma.Email, Cause: suppression.Manual})
		if err != nil {
			t.Fatal(err)
		}
		var pointers []string
		for _, fault := range got.Faults {
			pointers = append(pointers, fault.Pointer)
		}
		if diff := cmp.Diff([]string{"/rows/3/address", "/rows/4/cause"}, pointers); diff != "" {
			t.Error(diff)
		}
		got.Faults = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("run %d: %s", run, diff)
		}
	}
	want := map[string]string{"ada@example.com": "complaint", "bob@example.com": "manual"}
	if diff := cmp.Diff(want, f.check(suppression.Message{}, "ada@example.com", "bob@example.com", "cy@example.com")); diff != "" {
		t.Error(diff)
	}
}

// Excel writes a byte order mark, and quotes headers.
func TestTheHeaderOfAnImport(t *testing.T) {
	f := setup(t)
	for i, header := range []string{"address", `"address"`, "\ufeffaddress", "\ufeff\"address\"", "\ufeff\"Address\",\"cause\""} {
		file := fmt.Sprintf("%s\nc%d@example.com%s\n", header, i, strings.Repeat(",manual", strings.Count(header, ",")))
		got, err := f.Import(t.Context(), f.ws, strings.NewReader(file), suppression.Defaults{Channel: lemma.Email, Cause: suppression.Manual})
		if err != nil || got.Added != 1 {
			t.Errorf("%q: %d added, %v", header, got.Added, err)
		}
	}
}

func TestBrokenImports(t *testing.T) {
	f := setup(t)
	for what, c := range map[string]struct{ file, code string }{
		"nothing":        {"", "required"},
		"no address":     {"cause\nmanual\n", "required"},
		"another column": {"address,name\n", "unknown_field"},
		"a column twice": {"address,address\n", "repeated"},
		"an open quote":  {"address\nok@example.com\n\"x\n", "bad_csv"},
		"a short row":    {"address,cause\nok@example.com\n", "bad_csv"},
	} {
		_, err := f.Import(t.Context(), f.ws, strings.NewReader(c.file), suppression.Defaults{Channel: lemma.Email, Cause: suppression.Manual})
		var e *lemma.Error
		if !asError(err, &e) || e.Kind != lemma.Invalid || e.Fields[0].Code != c.code {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(f.check(suppression.Message{}, "ok@example.com")) != 1 {
		t.Error("the rows before a broken line are not stored")
	}
}

// A row is read to 64 KiB: a CSV reader would allocate 24 bytes for each comma.
func TestALongRowEndsAnImport(t *testing.T) {
	f := setup(t)
	for what, head := range map[string]string{
		"a header": "address", "a row": "address\nok@example.com\nx", "a quoted field": "address\nok@example.com\n\"\n",
	} {
		body := &countingReader{from: io.MultiReader(strings.NewReader(head), endless{})}
		_, err := f.Import(t.Context(), f.ws, body, suppression.Defaults{Channel: lemma.Email, Cause: suppression.Manual})
		var e *lemma.Error
		if !asError(err, &e) || e.Fields[0].Code != "bad_csv" || body.n > 256<<10 {
			t.Errorf("%s: %v after %d bytes", what, err, body.n)
		}
	}
	if len(f.check(suppression.Message{}, "ok@example.com")) != 1 {
		t.Error("the rows before a long row are not stored")
	}
}

// endless is commas without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ','
	}
	return len(p), nil
}

// countingReader counts what is read, and ends after 10 MiB.
type countingReader struct {
	from io.Reader
	n    int
}

func (r *countingReader) Read(p []byte) (int, error) {
	if r.n > 10<<20 {
		return 0, io.EOF
	}
	n, err := r.from.Read(p)
	r.n += n
	return n, err
}

// Concurrent imports of the same addresses in any order add each once, and an export
// is an import's input.
func TestConcurrentImports(t *testing.T) {
	f := setup(t)
	const n = 12_000
	var added atomic.Int64
	var all sync.WaitGroup
	for run := range 4 {
		all.Go(func() {
			var file strings.Builder
			file.WriteString("address\n")
			for i := range n {
				fmt.Fprintf(&file, "a%d@example.com\n", (i*7919+run*3001)%n)
			}
			got, err := f.Import(context.Background(), f.ws, strings.NewReader(file.String()),
				suppression.Defaults{Channel: lemma.Email, Cause: suppression.Manual})
			if err != nil || got.Added+got.Known != n {
				t.Errorf("%+v, %v", got, err)
			}
			added.Add(int64(got.Added))
		})
	}
	all.Wait()
	if added.Load() != n {
		t.Errorf("%d added, want %d", added.Load(), n)
	}
	var file bytes.Buffer
	if last, err := f.Export(t.Context(), f.ws, suppression.Filter{}, uuid.Nil, &file); err != nil || last != uuid.Nil {
		t.Fatal(last, err)
	}
	got, err := f.Import(t.Context(), f.other, &file, suppression.Defaults{})
	if err != nil || got.Added != n {
		t.Errorf("%+v, %v", got, err)
	}
}

func asError(err error, e **lemma.Error) bool { return errors.As(err, e) }

// A suppression of a repeated request has an id of the first request's time, and is listed
// by the time at which it was created.
func TestListOfARepeatedRequest(t *testing.T) {
	f := setup(t)
	made, _, err := f.Add(t.Context(), f.ws, suppression.Entry{ID: pgtest.IDAt(time.Now().Add(-24 * time.Hour)), Channel: lemma.Email,
		Address: "ada@x.example", Cause: "manual"})
	if err != nil {
		t.Fatal(err)
	}
	after := made.CreatedAt.Add(-time.Minute)
	found, _, err := f.List(t.Context(), f.ws, suppression.Filter{}, page.Query{Limit: 10, CreatedAfter: &after})
	if err != nil || len(found) != 1 || found[0].ID != made.ID {
		t.Errorf("%v, %v", found, err)
	}
}
