// Package redact removes the secrets of a provider's account from texts of its server. It
// guarantees that a text that it returns contains no secret of the account as it is,
// JSON-escaped, URL-escaped, in hexadecimal or in base64, also inside of a longer text that
// is in base64, such as the data of AUTH PLAIN.
//
//   - A secret is a string of at least 4 bytes in the JSON of the account's secrets, and
//     each line of one. What names something, such as the id of a key, is public (Of).
//   - A secret of less than 8 bytes is only found as a whole word, since it may be a part
//     of normal words. In base64 the decoded text has the words.
//   - JSON Web Tokens, private keys in PEM, and what follows Bearer or Basic are removed
//     too: they are made of secrets, or were received for them.
//
// What is not found: a secret of less than 4 bytes, a part of a secret, one in another
// encoding, one that is encoded twice other than by two escapes (such as JSON in a URL), and
// one with other upper or lower case.
//
// Text costs one pass over a text in which nothing is found, without allocating. Of an account
// with more than 100 strings and lines, all of a text is removed; so is a text that would have
// to be compared with too many forms.
package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"lemma/processors"
)

// Redacted replaces what is removed.
const Redacted = "[redacted]"

// Secrets are those of one account. All methods are safe for concurrent use, and change
// nothing on nil.
type Secrets struct {
	fixed   *forms
	learned atomic.Pointer[forms] // nil: none
	key     []byte                // of ID

	learning sync.Mutex
	last     []string // what was learned last
}

// Of returns the secrets in the JSON of an account. The JSON of some kinds also has members
// that name something: the ids of keys, and in a key file of Google the account, the project
// and the servers. They are in normal answers and are not removed.
func Of(secrets []byte) *Secrets { return newSecrets(secrets, false) }

// AllOf is Of for the trace of a conversation: it also contains what was sent, and the ids
// of keys and accounts are removed from it.
func AllOf(secrets []byte) *Secrets { return newSecrets(secrets, true) }

func newSecrets(secrets []byte, ids bool) *Secrets {
	key := sha256.Sum256(secrets)
	s := &Secrets{fixed: &forms{most: mostSecrets}, key: key[:]}
	if ids {
		s.fixed.most = mostOfTrace
	}
	var value any
	if json.Unmarshal(secrets, &value) == nil {
		s.fixed.addAll("", value, ids)
	}
	s.fixed.index()
	if !ids {
		s.fixed.all = nil // nothing is added to it
	}
	return s
}

// Size estimates the bytes of memory of the secrets of an account, without what was learned.
func (s *Secrets) Size() int {
	if s == nil {
		return 0
	}
	return s.fixed.bytes()
}

const mostLearned = 4 // texts: a token is replaced before it expires, so that two of them may be valid

// Learn adds a text that is not in the account's JSON, such as an access token that the
// account has received. Only the last few are kept.
func (s *Secrets) Learn(text string) {
	if s == nil {
		return
	}
	s.learning.Lock()
	defer s.learning.Unlock()
	s.last = append(slices.DeleteFunc(s.last, func(one string) bool { return one == text }), text)
	s.last = s.last[max(0, len(s.last)-mostLearned):]
	fresh := &forms{most: mostSecrets}
	for _, one := range s.last {
		fresh.add(one)
	}
	fresh.index()
	s.learned.Store(fresh)
}

// Add adds a text and the strings of the JSON that it may be, to secrets of AllOf. It is not
// for concurrent use. It returns how many forms of secrets are searched, or the highest number
// if there are more secrets than are.
func (s *Secrets) Add(text string) int {
	s.fixed.add(text)
	var value any
	if json.Unmarshal([]byte(text), &value) == nil {
		s.fixed.addAll("", value, true)
	}
	s.fixed.index()
	if s.fixed.tooMany {
		return math.MaxInt
	}
	return len(s.fixed.all)
}

// Text is a text without the secrets.
func (s *Secrets) Text(text string) string {
	if s == nil || !suspect(s.fixed, text) && !suspect(s.learned.Load(), text) {
		return text
	}
	return s.remove(text)
}

// Bytes is Text of bytes. The result may be text itself.
func (s *Secrets) Bytes(text []byte) []byte {
	if s == nil || !suspect(s.fixed, text) && !suspect(s.learned.Load(), text) {
		return text
	}
	return []byte(s.remove(string(text)))
}

// ID is an id without the secrets. One that contains a secret is replaced by a hash, so
// that two different ids stay different. The hash has a key, so that a secret that is the
// whole id cannot be guessed by it.
func (s *Secrets) ID(id string) string {
	if s.Text(id) == id {
		return id
	}
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id))
	return "redacted:" + hex.EncodeToString(mac.Sum(nil))
}

// longSecret is the length of a secret that is in no normal address, in bytes.
const longSecret = 16

// InAddress reports whether an address contains a secret. Only a long one is searched: a
// shorter one may be a word in a normal address.
func (s *Secrets) InAddress(address string) bool {
	if s.Text(address) == address {
		return false
	}
	for _, all := range s.fixed.first {
		for _, one := range all {
			if len(one.secret) >= longSecret && strings.Contains(address, one.text) {
				return true
			}
		}
	}
	return false
}

// Conversation is a part of a conversation without the secrets, and without what looks like
// a credential by its name. It is slower than Text and removes more.
func (s *Secrets) Conversation(text string) string {
	text = s.remove(text)
	text = sensitiveMember.ReplaceAllString(text, `$1"`+Redacted+`"`)
	return sensitiveParameter.ReplaceAllString(text, "$1"+Redacted)
}

var (
	jsonWebToken = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)
	credentials  = regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[A-Za-z0-9._~+/=-]{16,}`)
	privateKey   = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`)

	sensitive = `[A-Za-z0-9_.-]*(?:password|passwd|secret|token|api_?key|private_?key|access_?key|signature|assertion|credential|` +
		`authorization|cookie|session)[A-Za-z0-9_.-]*`
	sensitiveMember    = regexp.MustCompile(`(?i)("` + sensitive + `"\s*:\s*)"(?:[^"\\]|\\.)*"?`)
	sensitiveParameter = regexp.MustCompile(`(?i)((?:^|[?&\n])` + sensitive + `=)[^&\s"]+`)
)

// removing bounds the long texts from which secrets are removed at a time: a server decides how long its
// answers are, and 64 KiB take some 15 ms. Accounts have turns, as workspaces have of other kinds.
var removing = processors.New()

// shortText has so many bytes at most. It takes a millisecond.
const shortText = 4 << 10

// remove is Text without the test whether something is to be removed.
func (s *Secrets) remove(text string) string {
	if s.fixed.tooMany && text != "" {
		return Redacted
	}
	if len(text) > shortText {
		defer removing.Enter(uuid.UUID(s.key[:16]))() // by account
	}
	text = jsonWebToken.ReplaceAllString(text, Redacted) // before its parts: a part may contain a secret
	var all spans
	compared := 0
	for _, f := range []*forms{s.fixed, s.learned.Load()} {
		if f != nil {
			all = f.search(all, text, nil, mostEscaped, &compared)
		}
	}
	text = all.replace(text)
	text = privateKey.ReplaceAllString(text, Redacted)
	return credentials.ReplaceAllString(text, "$1 "+Redacted)
}

// span is a part of a text.
type span struct{ from, to int }

type spans []span

// add adds a part. Parts that follow each other become one, so that a text that repeats a
// secret has few.
func (s spans) add(one span) spans {
	if n := len(s); n > 0 && s[n-1].from <= one.from && one.from <= s[n-1].to {
		s[n-1].to = max(s[n-1].to, one.to)
		return s
	}
	return append(s, one)
}

func (s spans) replace(text string) string {
	if len(s) == 0 {
		return text
	}
	slices.SortFunc(s, func(a, b span) int { return a.from - b.from })
	var merged spans
	for _, one := range s {
		merged = merged.add(one)
	}
	var out strings.Builder
	end := 0
	for _, one := range merged {
		out.WriteString(text[end:one.from])
		out.WriteString(Redacted)
		end = one.to
	}
	out.WriteString(text[end:])
	return out.String()
}
