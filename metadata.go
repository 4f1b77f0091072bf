package lemma

import (
	"strings"
	"unicode/utf8"
)

// MaxMetadata is the maximum size of metadata: names and values together, in bytes.
const MaxMetadata = 16 << 10

// CheckMetadata checks the metadata of a resource, and returns a fault at a pointer or below it. The schema
// limits the number of entries and their lengths.
func CheckMetadata(at string, metadata map[string]string) error {
	size := 0
	for name, value := range metadata {
		if text := name + value; strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return Fault(at+Pointer(name), "invalid", "must be text without NUL")
		}
		size += len(name) + len(value)
	}
	if size > MaxMetadata {
		return Fault(at, "too_large", "must have at most %d bytes, names and values together", MaxMetadata)
	}
	return nil
}
