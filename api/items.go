package api

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/getkin/kin-openapi/openapi3"

	"lemma"
)

// items are the items of a bulk, each checked by itself, so that a broken
// one does not take the others down with it.
type items[T any] struct {
	at    string // of the list in the body
	items []item[T]
	sound []int // indexes of the items without a fault
	total int   // faults that are listed
}

// item is one of a bulk: its value, or its faults.
type item[T any] struct {
	value  T
	faults []lemma.Field
}

// readItems holds every item to the schema that the contract has for one
// alone, in a slot for decoding. The contract's own schema of a bulk leaves its items
// open.
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
	each := contract.Components.Schemas[schema].Value
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
	value, err := decode(text)
	if err != nil {
		return err
	}
	if err := checkSchema(schema, value); err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return unbindable(err)
	}
	return nil
}

// blame keeps the error of an item. What is not the item's fault
// is answered as an error of the whole.
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

// How many faults of one item are listed; only one when maxBulkFaults of the items
// before it are.
const (
	maxItemFaults = 10
	maxBulkFaults = 1_000
)

// put writes down the faults of an item, each where it is in the body. When not all
// are listed, the last one says so.
func (l *items[T]) put(i int, err error) {
	p, _ := explain(err)
	if len(p.Errors) == 0 {
		p.Errors = []problemFault{{Code: p.Code, Detail: p.Detail}}
	}
	most := maxItemFaults
	if l.total >= maxBulkFaults {
		most = 1
	}
	l.total += min(len(p.Errors), most)
	for n, f := range p.Errors[:min(len(p.Errors), most)] {
		if n == most-1 && len(p.Errors) > most {
			f.Detail += "; " + notAll
		}
		f.Pointer = l.at + strconv.Itoa(i) + f.Pointer
		l.items[i].faults = append(l.items[i].faults, lemma.Field(f))
	}
}

// retry names one item of a request by the Idempotency-Key's row, if there is
// one: where an event or enrollment has no id of its own, what a first try
// recorded before it died is known by it and not recorded again.
func (c *call) retry(i int) string {
	if c.request.Header.Get("Idempotency-Key") == "" {
		return ""
	}
	return "idempotency:" + lemma.FormatID("req", c.newID) + "/" + strconv.Itoa(i)
}
