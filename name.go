package lemma

import (
	"strings"
	"unicode/utf8"
)

// MaxName is the maximum length of a name, in characters.
const MaxName = 200

// CheckName checks the name of a resource, and returns a fault at /name. The schema
// has the same rule.
func CheckName(name string) *Error {
	blank := strings.TrimSpace(name) == ""
	if blank || utf8.RuneCountInString(name) > MaxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return Fault("/name", "invalid", "must have 1 to %d characters", MaxName)
	}
	return nil
}
