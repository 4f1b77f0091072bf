package flows

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
)

// Bounds of a question that is halved. One person at fault among a thousand is
// found with twenty questions more.
const (
	halvedMost  = 250              // questions in all
	halvedBlind = 15               // of them, when the query failed each time: it is not somebody's fault
	halvedFor   = 10 * time.Second // then no more are begun
)

// unanswered are travellers about whom a source gave no answer.
type unanswered struct {
	who []*traveller
	err error
}

// askAbout asks a source about travellers, and postpones those about whom it
// gives no answer: nobody waits because of another.
func (f *Flows) askAbout(ctx context.Context, source uuid.UUID, about waitingFor, who []*traveller, question func([]*traveller) error) {
	f.sources.remember(source, about)
	var left []unanswered
	err := f.ask(ctx, source, func() (err error) {
		left, err = halve(who, question)
		return err
	})
	if err != nil && left == nil { // it was not even asked
		left = []unanswered{{who, err}}
	}
	for _, u := range left {
		f.postponeAll(u.who, u.err)
	}
}

// halve asks about all together and, as long as that fails because of some of
// them, about halves: one half to its end before the other, so that somebody is
// answered soon however many are at fault. When somebody is left, err is what
// the source said last when it gave no answer.
func halve(who []*traveller, question func([]*traveller) error) (left []unanswered, err error) {
	begun, asked, answered := time.Now(), 0, false
	for queue := [][]*traveller{who}; len(queue) > 0; {
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
		if len(queue) > 0 && (asked >= halvedMost || blind && asked >= halvedBlind || time.Since(begun) > halvedFor) {
			return append(left, unanswered{slices.Concat(queue...), err}), err
		}
	}
	if left == nil {
		return nil, nil // in parts, the source has answered about all
	}
	return left, err
}

// isOfPeople tells errors that may be about what the source has of some people,
// such as a row that is too large or a value that the query cannot compute with.
func isOfPeople(err error) bool {
	var e *lemma.Error
	return errors.As(err, &e) && (e.Kind == lemma.TooLarge || e.Kind == lemma.Invalid && e.Code != audience.CodeRefused)
}
