package lemma

import "bytes"

// HasNUL reports whether a text or a name in valid JSON contains a NUL character, which jsonb
// cannot store. A backslash before u0000 that is escaped itself is none.
func HasNUL(json []byte) bool {
	for i := bytes.IndexByte(json, '\\'); i >= 0 && i < len(json); {
		if bytes.HasPrefix(json[i+1:], []byte("u0000")) {
			return true
		}
		rest := json[min(i+2, len(json)):] // after what is escaped
		next := bytes.IndexByte(rest, '\\')
		if next < 0 {
			return false
		}
		i = len(json) - len(rest) + next
	}
	return false
}
