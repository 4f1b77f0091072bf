package lemma

import (
	"strings"

	"golang.org/x/net/idna"
)

// MaxAddress is the longest email address that SMTP carries, in bytes
// (RFC 5321, 4.5.3.1.3 less the angle brackets).
const MaxAddress = 254

// CanonicalEmail turns an address as somebody typed it into the one that is
// written to, and into the form under which two spellings are one person:
// white space around it removed, the domain in lower case and ASCII (IDNA),
// for the canonical form the local part in lower case too. It is version 1 of
// the canonical form that campaign keys are made of.
//
// It answers false for what no mail server could take as one address:
// RFC 5321 dot-atom local parts and domain names with at least two labels are
// accepted; quoted local parts, address literals, comments and raw non-ASCII
// local parts are not.
func CanonicalEmail(raw string) (address, canonical string, ok bool) {
	s := strings.TrimSpace(raw)
	at := strings.LastIndexByte(s, '@')
	if at <= 0 || len(s) > MaxAddress {
		return "", "", false
	}
	local, domain := s[:at], s[at+1:]
	if !validLocal(local) {
		return "", "", false
	}
	domain, ok = canonicalDomain(domain)
	if !ok || len(local)+1+len(domain) > MaxAddress {
		return "", "", false
	}
	address = s
	if domain != s[at+1:] {
		address = local + "@" + domain
	}
	canonical = address
	if lower := strings.ToLower(local); lower != local {
		canonical = lower + "@" + domain
	}
	return address, canonical, true
}

// ShownAddress makes an address that nobody can write to, or is to write to,
// fit to be kept and shown.
func ShownAddress(raw string) string {
	s := strings.ReplaceAll(raw, "\x00", "?")
	return strings.ToValidUTF8(s[:min(len(s), MaxAddress)], "") // the cut may have split a character
}

// validLocal accepts an RFC 5321 dot-string of at most 64 bytes.
func validLocal(s string) bool {
	if len(s) > 64 || s[0] == '.' || s[len(s)-1] == '.' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.':
			if s[i-1] == '.' {
				return false
			}
		case strings.IndexByte("!#$%&'*+-/=?^_`{|}~", c) >= 0:
		default:
			return false
		}
	}
	return true
}

func canonicalDomain(s string) (string, bool) {
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			ascii, err := idna.Lookup.ToASCII(s)
			if err != nil {
				return "", false
			}
			s = ascii
			break
		}
	}
	s = strings.ToLower(s)
	return s, validDomain(s)
}

// validDomain accepts a name of two labels or more, of letters, digits and
// hyphens, whose last label is not a number.
func validDomain(s string) bool {
	if len(s) > 253 {
		return false
	}
	labels, start := 0, 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			c := s[i]
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
			continue
		}
		label := s[start:i]
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if i == len(s) && label[0] >= '0' && label[0] <= '9' {
			return false
		}
		labels, start = labels+1, i+1
	}
	return labels >= 2
}
