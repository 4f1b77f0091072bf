package lemma

import (
	"strings"
	"unicode/utf8"
)

// MaxName is how long the name of anything may be, in characters.
const MaxName = 200

// CheckName says at /name what is wrong with the name that somebody gave to
// something, such as a template. The schema holds the same rule.
func CheckName(name string) *Error {
	blank := strings.TrimSpace(name) == ""
	if blank || utf8.RuneCountInString(name) > MaxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return Fault("/name", "invalid", "a name has 1 to %d characters", MaxName)
	}
	return nil
}
