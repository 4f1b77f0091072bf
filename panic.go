package lemma

import (
	"fmt"
	"runtime/debug"
)

// Panic is a panic that was recovered. Its text, with the stack, is for the log.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// Recovered does work and answers a panic in it as a *Panic. It stands around
// one turn of a loop and around each use of a data source: what one customer's
// data or database does must not end the process that serves the others.
func Recovered(work func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{value, debug.Stack()}
		}
	}()
	return work()
}
