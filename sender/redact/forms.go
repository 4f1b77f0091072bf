package redact

import (
	"encoding/base64"
	"encoding/hex"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strings"
	"unsafe"
)

// The lengths of secrets, in bytes.
const (
	leastSecret = 4 // a shorter one would be found in many words
	leastPart   = 8 // a shorter one is a whole word
)

// mostSecrets is how many strings and lines of an account are searched: a key of 4,096 bits has
// 52 lines. It bounds the memory of an account, which a customer may fill with lines. mostOfTrace
// are those of a trace, which has what was sent besides.
const (
	mostSecrets = 100
	mostOfTrace = 1_000
)

// mostCompared is how many forms a text is compared with at places where they may begin. Secrets
// that begin alike, and a text of such beginnings, would take seconds.
const mostCompared = 100_000

// forms are secrets as texts may contain them, by their first four bytes.
type forms struct {
	all    map[string]form
	spaces bool // a secret has a blank, which is + in a form of a web page

	most    int // secrets
	secrets int
	tooMany bool // there are more secrets than are searched: nothing is shown

	first  map[uint32][]form // by the first four bytes, the longest first
	filter []uint64          // a bit for the hash of each key of first
	shift  int               // of a hash
}

// form is a secret as a text may contain it.
type form struct {
	text   string // the beginning, if it is encoded and long
	secret string
	isWord bool   // only as a whole word
	code   coding // of text
	before int    // in base64: how many bytes precede the secret, modulo 3
}

// coding is how a form is encoded.
type coding byte

const (
	asIs coding = iota
	inHex
	inBase64
)

// mostEncoded is how much of an encoded form is searched. It is enough to recognise the
// form, and all of the run of its characters is removed.
const mostEncoded = 64

// addAll adds the strings in a JSON value at a path of the account's JSON.
func (f *forms) addAll(path string, value any, ids bool) {
	switch value := value.(type) {
	case string:
		if !ids && (path == "/access_key_id" || path == "/api_key_sid") {
			return
		}
		f.add(value)
		if strings.HasPrefix(path, "/headers/") {
			f.addCredential(value)
		}
	case []any:
		for _, one := range value {
			f.addAll(path+"/", one, ids)
		}
	case map[string]any:
		_, isKeyFile := value["private_key"]
		isKeyFile = isKeyFile && path != "" // at the top it is the key of APNs
		for name, one := range value {
			if !isKeyFile || !publicMember.MatchString(name) && (ids || !idMember.MatchString(name)) {
				f.addAll(path+"/"+name, one, ids)
			}
		}
	}
}

// publicMember matches the members of a key file of Google that are no secrets. Without
// them the names of all its servers would be removed. idMember matches its ids.
var (
	publicMember = regexp.MustCompile(`^(type|project_id|.*_(uri|url|domain))$`)
	idMember     = regexp.MustCompile(`^(client_id|client_email|private_key_id)$`)
)

// addCredential adds the credential in the value of a header, without its scheme, and the
// password of Basic: a server may repeat it alone.
func (f *forms) addCredential(value string) {
	scheme, credential, ok := strings.Cut(value, " ")
	if credential = strings.TrimSpace(credential); !ok || len(credential) < leastPart || strings.Contains(credential, " ") {
		return
	}
	f.add(credential)
	if plain, err := base64.StdEncoding.DecodeString(credential); err == nil && strings.EqualFold(scheme, "Basic") {
		_, password, _ := strings.Cut(string(plain), ":")
		f.add(password)
	}
}

// add adds a secret, each of its lines, and the bytes of a signing secret.
func (f *forms) add(secret string) {
	f.addOne(secret)
	for line := range strings.SplitSeq(secret, "\n") {
		if line = strings.TrimSpace(line); line != secret && len(line) >= leastPart {
			f.addOne(line)
		}
	}
	if encoded, ok := strings.CutPrefix(secret, "whsec_"); ok {
		f.addOne(encoded)
		if key, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			f.addOne(string(key))
		}
	}
}

// encodings are the alphabets of base64, without padding: it depends on what follows.
var encodings = []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding}

func (f *forms) addOne(secret string) {
	if len(secret) < leastSecret || f.tooMany {
		return
	}
	if f.secrets++; f.secrets > f.most {
		f.tooMany = true
		return
	}
	f.spaces = f.spaces || strings.Contains(secret, " ")
	one := form{secret: secret, isWord: len(secret) < leastPart}
	f.put(one, secret)
	hexed := hex.EncodeToString([]byte(secret[:min(len(secret), mostEncoded/2)]))
	one.code = inHex
	f.put(one, hexed)
	f.put(one, strings.ToUpper(hexed))
	one.code = inBase64
	for _, e := range encodings {
		for one.before = range 3 {
			f.put(one, insideBase64(e, secret, one.before))
		}
	}
}

func (f *forms) put(one form, text string) {
	if f.all == nil {
		f.all = map[string]form{}
	}
	if one.code != asIs {
		text = strings.Clone(text[:min(len(text), mostEncoded)]) // not the memory of all of it
	}
	if have, ok := f.all[text]; len(text) >= 4 && (!ok || have.isWord && !one.isWord) {
		one.text = text
		f.all[text] = one
	}
}

// firsts are the offsets in base64 of the first character that depends only on a secret, by
// how many bytes precede the secret.
var firsts = [3]int{0, 2, 3}

// insideBase64 is what each encoding of a text contains in which so many bytes, modulo 3,
// precede the secret: without the characters that also depend on its neighbours.
func insideBase64(e *base64.Encoding, secret string, before int) string {
	encoded := e.EncodeToString(append(make([]byte, before), secret...))
	last := len(encoded)
	if (before+len(secret))%3 != 0 {
		last--
	}
	return encoded[min(firsts[before], last):last]
}

// index makes the forms searchable.
func (f *forms) index() {
	f.first = make(map[uint32][]form, len(f.all))
	for _, text := range slices.SortedFunc(maps.Keys(f.all), func(a, b string) int { return len(b) - len(a) }) {
		first := word(text[0], text[1], text[2], text[3])
		f.first[first] = append(f.first[first], f.all[text])
	}
	// 64 bits for each key: few other words have its bit.
	size := bits.Len(uint(len(f.first)|1)) + 6
	f.filter, f.shift = make([]uint64, 1<<(size-6)), 32-size
	for first := range f.first {
		h := f.hash(first)
		f.filter[h>>6] |= 1 << (h & 63)
	}
}

// bytes estimates the memory of the forms and of their secrets, after index.
func (f *forms) bytes() int {
	n := 8 * len(f.filter)
	for _, all := range f.first {
		n += int(unsafe.Sizeof(all))
		for _, one := range all {
			n += 2*int(unsafe.Sizeof(one)) + len(one.text) // the room of the slice or of the map, too
		}
	}
	return n
}

func (f *forms) hash(word uint32) uint32 { return word * 0x9E3779B1 >> f.shift }

func (f *forms) mayBegin(word uint32) bool {
	h := f.hash(word)
	return f.filter[h>>6]&(1<<(h&63)) != 0
}

// word is four bytes of a text as a number.
func word(a, b, c, d byte) uint32 { return uint32(a) | uint32(b)<<8 | uint32(c)<<16 | uint32(d)<<24 }

// The beginnings of what is removed though it is in no account: parts of a JSON Web Token,
// of Bearer and Basic, and of a key in PEM.
var (
	ofToken  = word(0, 'e', 'y', 'J')
	ofBearer = [2]uint32{word('e', 'a', 'r', 'e'), word('E', 'A', 'R', 'E')}
	ofBasic  = [2]uint32{word('a', 's', 'i', 'c'), word('A', 'S', 'I', 'C')}
	ofKey    = word('-', 'B', 'E', 'G')
)

// suspect reports whether something may have to be removed from a text: it has a form, an
// escape, or the beginning of a credential. It is the whole work for most texts, so it does
// not allocate.
func suspect[T string | []byte](f *forms, text T) bool {
	if f == nil {
		return false
	}
	if f.tooMany {
		return len(text) > 0
	}
	var last uint32
	compared := 0
	for i := range len(text) {
		c := text[i]
		if c == '%' || c == '\\' || c == '+' && f.spaces {
			return true
		}
		last = last>>8 | uint32(c)<<24
		if last&^0xff == ofToken || last == ofBearer[0] || last == ofBearer[1] || last == ofBasic[0] || last == ofBasic[1] || last == ofKey {
			return true
		}
		if i < 3 || !f.mayBegin(last) {
			continue
		}
		if compared += len(f.first[last]); compared > mostCompared {
			return true
		}
		for _, one := range f.first[last] {
			if from := i - 3; len(text)-from >= len(one.text) && string(text[from:from+len(one.text)]) == one.text {
				return true
			}
		}
	}
	return false
}
