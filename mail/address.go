// Package mail holds what all packages agree on about email: which addresses can
// be sent to, when two addresses belong to one mailbox, and which senders and
// headers a message may have. Every package that accepts, stores or compares an
// address uses it, so that one address has one spelling everywhere.
//
// Messages themselves are rendered by package message and sent by package sender.
package mail

import (
	"strings"

	"golang.org/x/net/idna"
)

// MaxAddress is the longest email address that SMTP carries, in bytes
// (RFC 5321, 4.5.3.1.3 less the angle brackets).
const MaxAddress = 254

// Address is an email address that a mail server accepts.
type Address struct {
	Text      string // what is sent to: no surrounding white space, the domain in ASCII (IDNA) and lower case
	Canonical string // the same with the local part in lower case: equal for two spellings of one mailbox
}

// ParseAddress reads an address as a person types it. Canonical is version 1 of
// the form that campaign keys are made of.
//
// It returns false for a text that is not one address to a mail server.
// RFC 5321 dot-atom local parts and domain names with at least two labels are
// accepted. Quoted local parts, address literals, comments and non-ASCII local
// parts are not.
func ParseAddress(raw string) (Address, bool) {
	s := strings.TrimSpace(raw)
	at := strings.LastIndexByte(s, '@')
	if at <= 0 || len(s) > MaxAddress {
		return Address{}, false
	}
	local, domain := s[:at], s[at+1:]
	if !validLocal(local) {
		return Address{}, false
	}
	domain, ok := canonicalDomain(domain)
	if !ok || len(local)+1+len(domain) > MaxAddress {
		return Address{}, false
	}
	a := Address{Text: s}
	if domain != s[at+1:] {
		a.Text = local + "@" + domain
	}
	a.Canonical = a.Text
	if lower := strings.ToLower(local); lower != local {
		a.Canonical = lower + "@" + domain
	}
	return a, true
}

// Displayable returns an invalid address in a form that can be stored and shown.
func Displayable(raw string) string {
	s := strings.ReplaceAll(raw, "\x00", "?")
	return strings.ToValidUTF8(s[:min(len(s), MaxAddress)], "") // the cut may have split a character
}

// validLocal accepts an RFC 5321 dot-string of at most 64 bytes.
func validLocal(s string) bool {
	if len(s) > 64 || s[0] == '.' || s[len(s)-1] == '.' {
		return false
	}
	for i := range len(s) {
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
