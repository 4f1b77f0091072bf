package trace

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const redacted = "[redacted]"

// leastSecret is the shortest text that is searched for. A shorter one would be found in
// many words.
const leastSecret = 4

// redactor replaces secrets in texts: as they are, and as JSON, URLs, hexadecimal and
// base64 contain them, also inside of a longer text that is encoded.
type redactor struct {
	plain  []string // longest first
	inside []string // what base64 of a text contains that contains the secret
}

// newRedactor returns a redactor for all strings in a JSON value, and for their lines.
func newRedactor(secrets []byte) (r redactor) {
	var value any
	if json.Unmarshal(secrets, &value) == nil {
		r.addAll(value)
	}
	return r
}

func (r *redactor) addAll(value any) {
	switch value := value.(type) {
	case string:
		r.add(value)
	case []any:
		for _, one := range value {
			r.addAll(one)
		}
	case map[string]any:
		_, isKeyFile := value["private_key"]
		for name, one := range value {
			if !isKeyFile || !publicMember.MatchString(name) {
				r.addAll(one)
			}
		}
	}
}

// publicMember matches the members of a key file of Google that are no secrets. Without
// them the names of all its servers would be removed.
var publicMember = regexp.MustCompile(`^(type|project_id|.*_(uri|url|domain))$`)

// add adds a secret, and each of its lines.
func (r *redactor) add(secret string) {
	for line := range strings.SplitSeq(secret, "\n") {
		if line = strings.TrimSpace(line); line != secret {
			r.addOne(line)
		}
	}
	r.addOne(secret)
}

func (r *redactor) addOne(secret string) {
	if len(secret) < leastSecret || slices.Contains(r.plain, secret) {
		return
	}
	quoted, _ := json.Marshal(secret) // a string can be marshalled
	hexed := hex.EncodeToString([]byte(secret))
	r.plain = append(r.plain, secret, strings.Trim(string(quoted), `"`), url.QueryEscape(secret), url.PathEscape(secret), hexed,
		strings.ToUpper(hexed))
	for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		r.plain = append(r.plain, e.EncodeToString([]byte(secret)))
		for before := range 3 {
			r.inside = append(r.inside, insideBase64(e, secret, before))
		}
	}
	r.inside = slices.DeleteFunc(r.inside, func(s string) bool { return len(s) < leastSecret })
	byLength := func(a, b string) int { return len(b) - len(a) }
	slices.SortStableFunc(r.plain, byLength)
	slices.SortStableFunc(r.inside, byLength)
	r.plain, r.inside = slices.Compact(r.plain), slices.Compact(r.inside)
}

// insideBase64 is what each encoding of a text contains in which so many bytes, modulo 3,
// precede the secret: without the characters that also depend on its neighbours.
func insideBase64(e *base64.Encoding, secret string, before int) string {
	encoded := e.WithPadding(base64.NoPadding).EncodeToString(append(make([]byte, before), secret...))
	first := []int{0, 2, 3}[before]
	last := len(encoded)
	if (before+len(secret))%3 != 0 {
		last--
	}
	return encoded[min(first, last):last]
}

var (
	jsonWebToken = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)
	credentials  = regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[A-Za-z0-9._~+/=-]{16,}`)
	privateKey   = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`)
	base64Run    = regexp.MustCompile(`[A-Za-z0-9+/_=-]{8,}`)

	sensitive = `[A-Za-z0-9_.-]*(?:password|passwd|secret|token|api_?key|private_?key|access_?key|signature|assertion|credential|` +
		`authorization|cookie|session)[A-Za-z0-9_.-]*`
	sensitiveMember    = regexp.MustCompile(`(?i)("` + sensitive + `"\s*:\s*)"(?:[^"\\]|\\.)*"?`)
	sensitiveParameter = regexp.MustCompile(`(?i)((?:^|[?&\n])` + sensitive + `=)[^&\s"]+`)
)

// text replaces what must not be shown.
func (r *redactor) text(s string) string {
	s = jsonWebToken.ReplaceAllString(s, redacted) // before its parts: a part may contain a secret
	if len(r.inside) > 0 {
		s = base64Run.ReplaceAllStringFunc(s, func(run string) string {
			if slices.ContainsFunc(r.inside, func(part string) bool { return strings.Contains(run, part) }) {
				return redacted
			}
			return run
		})
	}
	for _, secret := range r.plain {
		s = strings.ReplaceAll(s, secret, redacted)
	}
	s = privateKey.ReplaceAllString(s, redacted)
	s = credentials.ReplaceAllString(s, "$1 "+redacted)
	s = sensitiveMember.ReplaceAllString(s, `$1"`+redacted+`"`)
	return sensitiveParameter.ReplaceAllString(s, "$1"+redacted)
}
