package message

import (
	"cmp"
	"slices"
	"strings"

	"lemma"
)

// UnsubscribeURL is the variable that has the link of a recipient to the preference
// page. Every message has it: a column of this name is not used.
const UnsubscribeURL = "unsubscribe_url"

// SampleHost is what sample links begin with where there is no public URL. Nothing is
// reachable under this domain (RFC 6761, 6.4).
const SampleHost = "https://unsubscribe.invalid"

// SampleUnsubscribeURL is the link of messages that have no recipient yet. It has the length of
// the links that package unsubscribe makes under the public URL, so that the segments and the
// limits of a message are those of the one that is sent. No token is valid that begins so.
func SampleUnsubscribeURL(publicURL string) string {
	const path, token, tokenBytes = "/u/", "sample", 134
	return cmp.Or(publicURL, SampleHost) + path + token + strings.Repeat("0", tokenBytes-len(token))
}

// The headers of one-click unsubscription (RFC 8058).
const (
	listUnsubscribe     = "List-Unsubscribe"
	listUnsubscribePost = "List-Unsubscribe-Post"
)

// SentHeaders returns the headers that a message is sent with: those of a marketing email
// get the two of one-click unsubscription, unless they have a List-Unsubscribe of their own.
func SentHeaders(channel lemma.Channel, transactional bool, headers map[string]string) map[string]string {
	if channel != lemma.Email || transactional || hasUnsubscribe(headers) {
		return headers
	}
	all := make(map[string]string, len(headers)+2)
	for name, value := range headers {
		if !strings.EqualFold(name, listUnsubscribePost) {
			all[name] = value
		}
	}
	all[listUnsubscribe], all[listUnsubscribePost] = "<{{ "+UnsubscribeURL+" }}>", "List-Unsubscribe=One-Click"
	return all
}

func hasUnsubscribe(headers map[string]string) bool {
	for name := range headers {
		if strings.EqualFold(name, listUnsubscribe) {
			return true
		}
	}
	return false
}

// CheckPublicURL refuses a message with a link to unsubscribe for a server that recipients
// cannot reach. The content has its SentHeaders; own are those before.
func (c *Compiled) CheckPublicURL(transactional bool, own map[string]string) error {
	switch {
	case !c.Unsubscribes():
		return nil
	case c.Channel() == lemma.Email && !transactional && !hasUnsubscribe(own):
		return lemma.Fault("/transactional", "public_url_missing", "recipients of marketing could not unsubscribe, since the server has no "+
			"public URL: set LEMMA_PUBLIC_URL, or set transactional to true if this is no marketing")
	}
	return lemma.Fault("/template_id", "public_url_missing", "uses "+UnsubscribeURL+", and the server has no public URL: set LEMMA_PUBLIC_URL")
}

// columns are the names that a row of data must have.
func columns(used []string) []string {
	return slices.DeleteFunc(slices.Clone(used), func(name string) bool { return name == UnsubscribeURL })
}
