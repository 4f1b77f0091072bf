package sendertest

import (
	"errors"
	"strings"

	"lemma"
)

// Faults are the pointers of the faulty fields of a *lemma.Error, with blanks between
// them; empty for none.
func Faults(err error) string {
	var pointers []string
	if fault, ok := errors.AsType[*lemma.Error](err); ok {
		for _, f := range fault.Fields {
			pointers = append(pointers, f.Pointer)
		}
	}
	return strings.Join(pointers, " ")
}
