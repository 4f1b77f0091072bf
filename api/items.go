package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"lemma"
	"lemma/api/strict"
	"lemma/client"
)

// items are the items of a bulk, each checked alone, so that an invalid one does not fail
// the others.
type items[T any] struct {
	at    string // the pointer of the list
	items []item[T]
	sound []int // indexes of the items without a fault
	total int   // faults that are listed
}

// item is the value of an item, or its faults.
type item[T any] struct {
	value  T
	faults []lemma.Field
}

// allItems reports whether all items of a bulk can be read, and is returns true for each.
func allItems[T any](raw []json.RawMessage, is func(T) bool) bool {
	return !slices.ContainsFunc(raw, func(text json.RawMessage) bool {
		var value T
		return json.Unmarshal(text, &value) != nil || !is(value)
	})
}

// readItems checks every item against the schema of a single one, in a slot for decoding.
// The schema of the bulk accepts any items.
func readItems[T any](ctx context.Context, s *server, c *call, list, schema string, raw []json.RawMessage) (items[T], error) {
	leave, err := s.enterDecoding(ctx, c)
	if err != nil {
		return items[T]{}, err
	}
	defer leave()
	return checkItems[T](list, schema, raw), nil
}

func checkItems[T any](list, schema string, raw []json.RawMessage) items[T] {
	l := items[T]{at: "/" + list + "/", items: make([]item[T], len(raw)), sound: make([]int, 0, len(raw))}
	each := contract().Components.Schemas[schema].Value
	for i, text := range raw {
		if err := readItem(text, each, &l.items[i].value); err != nil {
			l.put(i, err)
			continue
		}
		l.sound = append(l.sound, i)
	}
	return l
}

func readItem(text json.RawMessage, schema *openapi3.Schema, into any) error {
	value, err := strict.Decode(text)
	if err != nil {
		return err
	}
	if err := strict.CheckSchema(schema, value); err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return strict.Unbindable(err)
	}
	return nil
}

// blame records the error of an item. It returns errors that are not the item's fault.
func (l *items[T]) blame(i int, err error) error {
	var domain *lemma.Error
	if err == nil {
		return nil
	}
	if !errors.As(err, &domain) || domain.Kind == lemma.Internal || domain.Kind == lemma.Unavailable {
		return err
	}
	l.put(i, err)
	return nil
}

// How many faults of one item are listed; one only after maxBulkFaults of earlier items.
const (
	maxItemFaults = 10
	maxItemBytes  = 4 << 10 // of them, after the first
	maxBulkFaults = 1_000
)

// put records the faults of an item with pointers into the body. When not all are listed,
// the last one mentions it.
func (l *items[T]) put(i int, err error) {
	p, _ := explain(err)
	cut := strings.HasSuffix(p.Detail, strict.NotAll)
	if len(p.Errors) == 0 {
		p.Errors = []client.Fault{{Code: p.Code, Detail: p.Detail}}
	}
	most := maxItemFaults
	if l.total >= maxBulkFaults {
		most = 1
	}
	faults := make([]lemma.Field, len(p.Errors))
	for n, f := range p.Errors {
		faults[n] = lemma.Field(f)
	}
	count := listed(faults, most, maxItemBytes)
	l.total += count
	for n, f := range faults[:count] {
		if n == count-1 && (len(faults) > count || cut) {
			f.Detail += "; " + strict.NotAll
		}
		f.Pointer = l.at + strconv.Itoa(i) + f.Pointer
		l.items[i].faults = append(l.items[i].faults, f)
	}
}

// retry identifies an item of a request by the row of the Idempotency-Key, if there is one.
// It makes sure that an event or enrollment without a source_id is recorded once, also
// when the first attempt crashed after recording it.
func (c *call) retry(i int) string {
	if c.request.Header.Get("Idempotency-Key") == "" {
		return ""
	}
	return "idempotency:" + lemma.FormatID("req", c.newID) + "/" + strconv.Itoa(i)
}
