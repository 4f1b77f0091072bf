package flows

import (
	"encoding/json"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"lemma"
	"lemma/flows/graph"
)

// Tag is the ETag of a flow. That of a plan or a validation of a draft has also what a
// publish would write, which depends on more than the flow: on its templates and audience.
type Tag struct {
	Version int
	Planned string // digest of what a publish writes; empty: whatever it is
}

// check returns an error if the flow or what is published now is not that of the tag. Nil
// allows any.
func (t *Tag) check(now Tag) error {
	switch {
	case t == nil || *t == now:
		return nil
	case t.Version != now.Version:
		return lemma.Changed("flow")
	case t.Planned != "" && t.Planned != now.Planned:
		return &lemma.Error{Kind: lemma.Stale,
			Message: "a template or the audience of the version was changed after the plan: plan it again"}
	}
	return nil
}

// version is that of the flow; nil allows any.
func (t *Tag) version() *int {
	if t == nil {
		return nil
	}
	return &t.Version
}

// pinned returns the definition of a draft as it is published, with the newest version of
// every template that it leaves open, and the digest of it and of the audience's version.
func (c *checked) pinned(v Version) (text json.RawMessage, digest string, err error) {
	if text, err = graph.Pin(v.Definition, c.pins); err != nil {
		return nil, "", err
	}
	audience := 0
	if c.audience != nil {
		audience = c.audience.Version
	}
	return text, fmt.Sprintf("%016x", xxhash.Sum64String(fmt.Sprintf("%d %d %s", v.Version, audience, text))), nil
}
