package lemma

import (
	"fmt"
	"runtime/debug"
)

// Panic is a recovered panic. Its text contains the stack and is only logged.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// Recovered calls work and returns a panic in it as a *Panic. It surrounds each run
// of a loop and each use of a data source: the data of one customer must not end the
// process that serves the others.
func Recovered(work func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{value, debug.Stack()}
		}
	}()
	return work()
}
