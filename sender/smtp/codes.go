package smtp

import (
	"regexp"
	"strconv"
)

// enhanced is an enhanced status code (RFC 3463, 2) at the beginning of a reply.
var enhanced = regexp.MustCompile(`^[245]\.[0-9]{1,3}\.[0-9]{1,3}\b`)

// codes is what may be shown of a reply before the login: its numbers. Until then
// nothing proves that the host is the account's mail server.
func codes(a reply) string {
	return "the server answered " + numbers(a)
}

// numbers are the reply code and the enhanced status code.
func numbers(a reply) string {
	text := strconv.Itoa(a.code)
	if more := enhanced.Find(a.text); more != nil {
		text += " " + string(more)
	}
	return text
}
