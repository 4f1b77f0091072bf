// Package lifecycle is the one mechanism of statuses and verbs. It promises that
// a verb is refused where the status does not allow it, that the refusal lists
// the verbs that are allowed, and that a request which is repeated is done once.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lemma"
)

// Table says which statuses allow which verbs.
type Table[S, V ~string] struct {
	Noun  string    // "campaign"
	From  map[V][]S // the statuses that allow a verb
	Asked []V       // the verbs of the API, in the order in which they are shown; the others are Lemma's own
}

// Allowed lists the verbs of the API that a status allows. It is never nil.
func (t Table[S, V]) Allowed(status S) []string {
	verbs := []string{}
	for _, v := range t.Asked {
		if slices.Contains(t.From[v], status) {
			verbs = append(verbs, string(v))
		}
	}
	return verbs
}

// Check answers nil if the status allows the verb, or else the refusal.
func (t Table[S, V]) Check(status S, verb V) error {
	if slices.Contains(t.From[verb], status) {
		return nil
	}
	return t.Refuse(status, verb)
}

// Refuse is the answer to a verb that the status does not allow.
func (t Table[S, V]) Refuse(status S, verb V) error {
	return &lemma.Error{Kind: lemma.WrongStatus, Message: fmt.Sprintf("a %s that is %s does not allow %s", t.Noun, status, verb),
		Status: string(status), Allowed: t.Allowed(status)}
}

// ErrRepeated rolls back a verb that an earlier try of the same request has done.
var ErrRepeated = errors.New("this request has been done before")

// Once ends a verb. If it failed, and an earlier try of the same request did it,
// err only says what that try has left behind: the answer is what read finds now.
func Once[T any](
	ctx context.Context, err error, repeated func(context.Context) (bool, error), read func(context.Context) (T, error),
) (T, error) {
	if err == nil {
		return read(ctx)
	}
	var nothing T
	done, failed := repeated(ctx)
	switch {
	case failed != nil:
		return nothing, failed
	case !done:
		return nothing, err
	}
	return read(ctx)
}
