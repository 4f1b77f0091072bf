package sender

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"lemma/address"
	"lemma/sender/redact"
)

const mostDetail = 200

// Detail is a carrier's text as a receipt has it: on one line, at most 200 bytes, without
// the secrets of the account, the recipient's address and control characters.
//
// The secrets are searched first, in the whole text: a secret is not recognised when a part
// of it is cut off or blanked as an address. They are searched again when the line is
// made, since a server may have folded a secret that has a blank. secrets may be nil for a
// text of Lemma itself.
func Detail(secrets *redact.Secrets, text, recipient string) string {
	text = secrets.Text(text)
	line := strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)), " ")
	if line != text {
		line = secrets.Text(line)
	}
	text = strings.TrimSpace(blank(line, recipient))
	if len(text) <= mostDetail {
		return text
	}
	cut := mostDetail
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}

const blanked = "[address]"

// blank removes an address from a text, in any case. It returns no more of the text than a detail
// has. Text and address may be those of a stranger: the time grows with the length of the address,
// and of no more of the text than a detail can be made of.
func blank(text, recipient string) string {
	if recipient == "" || len(recipient) > address.MaxToken {
		return text
	}
	if most := mostDetail + (mostDetail/len(blanked)+2)*len(recipient); len(text) > most {
		text = text[:most]
	}
	var out strings.Builder
	folded, part := fold(text), fold(recipient)
	for out.Len() <= mostDetail {
		i := strings.Index(folded, part)
		if i < 0 {
			out.WriteString(text)
			break
		}
		out.WriteString(text[:i])
		out.WriteString(blanked)
		text, folded = text[i+len(part):], folded[i+len(part):]
	}
	return out.String()
}

// fold returns a text of the same length that is equal for texts which differ in case only, as
// strings.EqualFold compares them.
func fold(text string) string {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case 'a' <= r && r <= 'z':
			out = append(out, byte(r)-'a'+'A')
		case size == 1:
			out = append(out, text[0])
		default:
			out = utf8.AppendRune(out, firstOfCase(r, size))
		}
		text = text[size:]
	}
	return string(out)
}

// firstOfCase is the first of the characters of a size in bytes that differ from r in case only.
func firstOfCase(r rune, size int) rune {
	first := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		if f < first && utf8.RuneLen(f) == size {
			first = f
		}
	}
	return first
}
