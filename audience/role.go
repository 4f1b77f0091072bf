package audience

import (
	"context"
	"fmt"
	"strings"

	"lemma"
)

// finding is something that the role of a source may do and need not, with the
// statements that take it away.
type finding struct {
	text   string   // "can write to 2 tables": what the role does
	revoke []string // to be run by an administrator of the source
}

// role is what a source says of the login that Lemma uses.
type role struct {
	version  string    // of the server
	powers   []finding // refused: more than rows may be read, or changed, with these
	writes   []finding // refused, unless Options.AllowWriting
	warnings []string
	revoke   []string
}

// accept refuses a role that can do harm, and answers what to warn of.
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

// maxRevokes is how many statements a finding shows.
const maxRevokes = 50

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
	texts := make([]string, len(found))
	for i, f := range found {
		texts[i] = f.String()
	}
	return refused(excessOf(found), "the role of the source %s; use one that can only select what audiences need", strings.Join(texts, ", and "))
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

// advise adds the findings that no role is refused for.
func (r *run) advise(ctx context.Context) error {
	found, err := r.risks(ctx)
	for _, f := range found {
		r.warnings = append(r.warnings, "the role "+f.text)
		r.revoke = append(r.revoke, f.revoke[:min(len(f.revoke), maxRevokes)]...)
	}
	return err
}
