package execution

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/admission"
)

// Limits of a bisected query. One failing profile among a thousand costs twenty further
// queries.
const (
	bisectMost  = 250              // queries in all
	bisectBlind = 15               // queries, if each failed: no profile is the cause
	bisectFor   = 10 * time.Second // then no further query is begun
)

// unanswered are executions for which a source returned no result.
type unanswered struct {
	execs []*Execution
	err   error
}

// queryFor queries a source for executions, and blocks only those without a result.
func (e *Evaluator) queryFor(ctx context.Context, source uuid.UUID, about admission.Blocked, execs []*Execution,
	question func([]*Execution) error) {
	e.Sources.Remember(source, about)
	var left []unanswered
	err := e.Sources.QueryForWorker(ctx, about.Workspace, source, func() (err error) {
		left, err = bisect(execs, question)
		return err
	})
	if err != nil && left == nil { // it was not queried
		left = []unanswered{{execs, err}}
	}
	for _, u := range left {
		e.blockAll(u.execs, u.err)
	}
}

// bisect queries for all executions together and, while that fails because of some of
// them, for each half: one half to its end before the other, so that some advance soon
// however many fail. If executions are left, err is the last error of the source.
func bisect(execs []*Execution, question func([]*Execution) error) (left []unanswered, err error) {
	begun, asked, answered := time.Now(), 0, false
	for queue := [][]*Execution{execs}; len(queue) > 0; {
		last := len(queue) - 1
		some := queue[last]
		queue = queue[:last]
		asked++
		failed := question(some)
		if failed == nil {
			answered = true
			continue
		}
		err = failed
		switch half := len(some) / 2; {
		case !isOfPeople(err):
			return append(left, unanswered{slices.Concat(append(queue, some)...), err}), err
		case half == 0:
			left = append(left, unanswered{some, err})
		default:
			queue = append(queue, some[:half], some[half:])
		}
		blind := !answered && lemma.KindOf(err) != lemma.TooLarge
		if len(queue) > 0 && (asked >= bisectMost || blind && asked >= bisectBlind || time.Since(begun) > bisectFor) {
			return append(left, unanswered{slices.Concat(queue...), err}), err
		}
	}
	if left == nil {
		return nil, nil // in parts, the source has answered for all
	}
	return left, err
}

// isOfPeople recognizes errors that the rows of some profiles may cause, such as a row
// that is too large or a value that the query cannot use.
func isOfPeople(err error) bool {
	var e *lemma.Error
	return errors.As(err, &e) && (e.Kind == lemma.TooLarge || e.Kind == lemma.Invalid && e.Code != audience.CodeRefused)
}
