// Package lifecycle checks which statuses of a thing allow which verbs. A verb
// that the status does not allow is refused, and the refusal lists the verbs that
// are allowed. A request that is repeated has its effect once.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lemma"
)

// Table lists the statuses that allow each verb.
type Table[S, V ~string] struct {
	Noun   string    // "campaign"
	From   map[V][]S // the statuses that allow a verb
	Public []V       // the verbs of the API, in the order in which they are shown; Lemma uses the others itself
}

// Allowed lists the verbs of the API that a status allows. It is never nil.
func (t Table[S, V]) Allowed(status S) []string {
	verbs := []string{}
	for _, v := range t.Public {
		if slices.Contains(t.From[v], status) {
			verbs = append(verbs, string(v))
		}
	}
	return verbs
}

// Check returns nil if the status allows the verb, and the refusal otherwise.
func (t Table[S, V]) Check(status S, verb V) error {
	if slices.Contains(t.From[verb], status) {
		return nil
	}
	return t.Refuse(status, verb)
}

// Refuse returns the error for a verb that the status does not allow.
func (t Table[S, V]) Refuse(status S, verb V) error {
	return &lemma.Error{Kind: lemma.WrongStatus, Message: fmt.Sprintf("%s that is %s does not allow %s", t.Noun, status, verb),
		Status: string(status), Allowed: t.Allowed(status)}
}

// ErrRepeated rolls back a verb that an earlier attempt of the same request has applied.
var ErrRepeated = errors.New("an earlier attempt of this request has been applied")

// Once ends a verb. An error is ignored if an earlier attempt of the same request
// applied the verb, since that attempt changed the status. Once then returns what
// read finds.
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
