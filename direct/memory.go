package direct

import (
	"fmt"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/admission"
	"lemma/slots"
)

// Limits of the addresses and data that requests have of profiles, in bytes: from when their audience is
// read until they are stored.
const (
	MaxProfileData  = 16 << 20 // of a request or bulk
	dataOfWorkspace = 32 << 20
	dataOfProcess   = 128 << 20
)

// memory is the addresses and data that a request or bulk has of profiles.
type memory struct {
	d     *Direct
	of    slots.Resource
	bytes int
	full  bool // it has as much as one request may
}

func (d *Direct) newMemory(ws uuid.UUID) *memory {
	return &memory{d: d, of: slots.Resource{Workspace: ws}}
}

// take takes memory for more data. It does not wait, since a data source is being read.
func (m *memory) take(bytes int) error {
	switch more := m.bytes + bytes; {
	case more > MaxProfileData:
		m.full = true
		return &lemma.Error{Kind: lemma.TooLarge, Code: audience.CodeLimit, Message: fmt.Sprintf(
			"the profiles of one request have more than %d bytes of addresses and data that the contents use; send fewer items in a request",
			MaxProfileData)}
	case !m.d.data.Resize(m.of, m.bytes, more):
		return &lemma.Error{Kind: lemma.Unavailable, Code: admission.CodeOverloaded,
			Message: "too many direct notifications with data of profiles wait to be stored; try again in a moment"}
	default:
		m.bytes = more
		return nil
	}
}

// release releases the memory after the requests were stored or refused.
func (m *memory) release() { m.d.data.Resize(m.of, m.bytes, 0) }
