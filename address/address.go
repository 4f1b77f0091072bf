// Package address holds what all packages agree on about the addresses of profiles:
// email addresses, phone numbers and the tokens of devices. It decides which can be
// sent to, and when two spellings are one address. Package mail has the rules of
// email addresses.
package address

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"lemma"
	"lemma/mail"
)

// MaxToken is the longest token of a device, in bytes. A Web Push subscription has some
// hundreds of bytes; a token of FCM or APNs has fewer.
const MaxToken = 4096

// MaxTokens is the number of tokens in one row of an audience that are sent to. More
// are rarely the devices of one person, and each is a message.
const MaxTokens = 20

// MaxElements is the number of elements of a list that are read: duplicates and blanks
// take time too, and a list of thousands would slow the rows of all workspaces.
const MaxElements = 200

// Faults of addresses. The reasons for which a notification is skipped have the same names.
const (
	Missing = "missing_address"    // null or blank
	Invalid = "invalid_address"    // the channel cannot carry it
	TooMany = "too_many_addresses" // it follows MaxTokens others in its row, and stands for all that do
)

// Address is an address of a profile in one channel.
type Address struct {
	Text      string // what is sent to; of an invalid address what can be stored and shown
	Canonical string // equal for two spellings of one address; empty if it is missing or invalid
	Fault     string // empty: it can be sent to
}

// Append reads a value of an audience and appends its addresses: one, or for push one
// for each distinct token. region is the country of phone numbers in national form.
func Append(to []Address, channel lemma.Channel, value, region string) []Address {
	switch channel {
	case lemma.SMS:
		return append(to, phone(value, region))
	case lemma.Push:
		return appendTokens(to, value)
	}
	return append(to, email(value))
}

// Parse reads one address. Phone numbers must be in international form.
func Parse(channel lemma.Channel, value string) Address {
	switch channel {
	case lemma.SMS:
		return phone(value, "")
	case lemma.Push:
		return token(value)
	}
	return email(value)
}

// CanonicalOf returns the canonical form of an Address by its Text, as Parse does. It is faster
// for phone numbers and tokens, whose texts it does not check.
func CanonicalOf(channel lemma.Channel, text string) string {
	switch channel {
	case lemma.SMS:
		return canonicalPhone(text)
	case lemma.Push:
		return identity(text)
	}
	return email(text).Canonical
}

func email(value string) Address {
	a, ok := mail.ParseAddress(value)
	switch {
	case ok:
		return Address{Text: a.Text, Canonical: a.Canonical}
	case strings.TrimSpace(value) == "":
		return Address{Fault: Missing}
	}
	return Address{Text: mail.Displayable(value), Fault: Invalid}
}

func phone(value, region string) Address {
	if number, ok := Phone(value, region); ok {
		return Address{Text: number, Canonical: canonicalPhone(number)}
	}
	if strings.TrimSpace(value) == "" {
		return Address{Fault: Missing}
	}
	return Address{Text: mail.Displayable(value), Fault: Invalid}
}

// token accepts any text without control characters: only the push service can check it.
// Its case is significant. A JSON object, such as a Web Push subscription, is compacted.
func token(value string) Address {
	text := strings.TrimSpace(value)
	var compact bytes.Buffer
	if strings.HasPrefix(text, "{") && json.Compact(&compact, []byte(text)) == nil {
		text = compact.String()
	}
	switch {
	case text == "":
		return Address{Fault: Missing}
	case len(text) > MaxToken, !isPlain(text):
		return Address{Text: mail.Displayable(text), Fault: Invalid}
	}
	return Address{Text: text, Canonical: identity(text)}
}

// identity is the endpoint of a subscription, which no other has (RFC 8030, 4): the order
// of members and an expirationTime make no other device. Any other token is itself.
func identity(token string) string {
	var subscription struct{ Endpoint string }
	if strings.HasPrefix(token, "{") && json.Unmarshal([]byte(token), &subscription) == nil &&
		subscription.Endpoint != "" && isPlain(subscription.Endpoint) {
		return subscription.Endpoint
	}
	return token
}

func isPlain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// appendTokens reads a token, or a JSON list of tokens. Blank ones, null and repeated
// ones are left out. So are the valid ones after the first MaxTokens, and as many invalid
// ones, and what follows MaxElements: the first of them all is TooMany, and stands for the others.
func appendTokens(to []Address, value string) []Address {
	before, valid, invalid := len(to), 0, 0
	var rest *Address
	seen := map[string]bool{}
	for i, text := range split(value) {
		a := token(text)
		if i == MaxElements && rest == nil {
			rest = &Address{Text: a.Text, Canonical: a.Canonical, Fault: TooMany}
			break
		}
		id := cmp.Or(a.Canonical, a.Text)
		if a.Fault == Missing || seen[id] {
			continue
		}
		n := &valid
		if a.Fault != "" {
			n = &invalid
		}
		if *n++; *n <= MaxTokens {
			seen[id], to = true, append(to, a)
		} else if rest == nil {
			rest = &Address{Text: a.Text, Canonical: a.Canonical, Fault: TooMany}
		}
	}
	if rest != nil {
		to = append(to, *rest)
	}
	if len(to) == before {
		to = append(to, Address{Fault: Missing})
	}
	return to
}

// split returns the elements of a JSON list, and any other text as it is. It reads no
// more than MaxElements of them and the next.
func split(value string) []string {
	text := strings.TrimSpace(value)
	if !strings.HasPrefix(text, "[") {
		return []string{text}
	}
	list := json.NewDecoder(strings.NewReader(text))
	_, _ = list.Token() // the bracket
	tokens := []string{}
	for list.More() && len(tokens) <= MaxElements {
		var raw json.RawMessage
		if list.Decode(&raw) != nil {
			return []string{text}
		}
		tokens = append(tokens, element(raw))
	}
	if len(tokens) <= MaxElements && !ends(list) {
		return []string{text}
	}
	return tokens
}

// ends reports whether nothing follows the list.
func ends(list *json.Decoder) bool {
	if _, err := list.Token(); err != nil { // the bracket
		return false
	}
	_, err := list.Token()
	return errors.Is(err, io.EOF)
}

// List writes one token in the form that Append reads as one.
func List(token string) string {
	list, _ := json.Marshal([]string{token})
	return string(list)
}

func element(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil { // also null, which is no text
		return text
	}
	return string(raw)
}
