package loop

import (
	"errors"
	"fmt"
	"slices"
)

// mostErrors is how many errors Errors keeps.
const mostErrors = 10

// Errors joins the errors of any number of items: the first ones, and how many others there
// were. So neither memory nor a line of the log grows with the items. It is not safe for
// concurrent use.
type Errors struct {
	first []error
	more  int
}

// Add adds an error unless it is nil. That of another Errors is added with its count.
func (e *Errors) Add(err error) {
	switch of := err.(type) { //nolint:errorlint // an error that wraps one of Errors is one error
	case nil:
	case *many:
		for _, one := range of.first {
			e.Add(one)
		}
		e.more += of.more
	default:
		if len(e.first) < mostErrors {
			e.first = append(e.first, err)
		} else {
			e.more++
		}
	}
}

// Err returns the errors as one, nil if there are none. Later calls of Add do not change it.
func (e *Errors) Err() error {
	if len(e.first) == 0 {
		return nil
	}
	return &many{first: slices.Clip(e.first), more: e.more}
}

// many is the error that Errors returns.
type many struct {
	first []error
	more  int
}

func (m *many) Error() string {
	text := errors.Join(m.first...).Error()
	if m.more > 0 {
		text += fmt.Sprintf("\nand %d more errors", m.more)
	}
	return text
}

func (m *many) Unwrap() []error { return m.first }
