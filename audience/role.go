package audience

import (
	"context"
	"fmt"
	"strings"

	"lemma"
)

// finding is a privilege that the role of a source does not need, with the statements
// that revoke it.
type finding struct {
	text   string   // "can write to 2 tables"
	revoke []string // for an administrator of the source
}

// role has the properties of the login at a source.
type role struct {
	version  string    // of the server
	powers   []finding // refused: they allow more than reading rows
	writes   []finding // refused, unless Options.AllowWriting
	warnings []string
	revoke   []string
}

// accept refuses a role with too many privileges, and returns warnings.
func (o Options) accept(r role) (warnings []string, err error) {
	if len(r.powers) > 0 {
		return nil, tooPowerful(r.powers)
	}
	if len(r.writes) > 0 && !o.AllowWriting {
		return nil, tooPowerful(r.writes)
	}
	for _, w := range r.writes {
		warnings = append(warnings, "the role "+w.text)
	}
	return append(warnings, r.warnings...), nil
}

const (
	maxRevokes  = 50 // statements that a finding shows
	maxFindings = 50 // findings that an error shows
)

func (f finding) String() string {
	if len(f.revoke) == 0 {
		return f.text
	}
	shown := f.revoke[:min(len(f.revoke), maxRevokes)]
	text := f.text + "; to take that away run: " + strings.Join(shown, "; ")
	if more := len(f.revoke) - len(shown); more > 0 {
		text += fmt.Sprintf("; and %d more statements", more)
	}
	return text
}

func tooPowerful(found []finding) *lemma.Error {
	shown := found[:min(len(found), maxFindings)]
	texts := make([]string, 0, len(shown)+1)
	for _, f := range shown {
		texts = append(texts, f.String())
	}
	if more := len(found) - len(shown); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return refused(excessOf(shown), "the role of the source %s; use one that can only select what audiences need",
		strings.Join(texts, ", and "))
}

// excess is the cause of the refusal of a role.
type excess struct{ revoke []string }

func (e *excess) Error() string { return "the role may do too much" }

func excessOf(found []finding) *excess {
	e := &excess{}
	for _, f := range found {
		e.revoke = append(e.revoke, f.revoke[:min(len(f.revoke), maxRevokes)]...)
	}
	return e
}

// advise adds findings that are not a reason to refuse the role.
func (r *run) advise(ctx context.Context) error {
	found, err := r.risks(ctx)
	for _, f := range found {
		r.warnings = append(r.warnings, "the role "+f.text)
		r.revoke = append(r.revoke, f.revoke[:min(len(f.revoke), maxRevokes)]...)
	}
	return err
}
