package message

import (
	"cmp"
	"slices"
	"strings"
)

// partFilter is added to the right side of contains when a template is compiled: the
// engine would look for a number in a form of its own.
const partFilter = "lemma_part"

// partOf returns a number as one that the engine writes as a decimal.
func partOf(v any) any {
	if f, ok := v.(float64); ok {
		return decimalNumber(f)
	}
	return v
}

// decimalNumber is equal to the number, and its text is a decimal.
type decimalNumber float64

// String is described at decimal.
func (n decimalNumber) String() string { return decimal(float64(n)) }

// edit is a text to be inserted into a template.
type edit struct {
	at   int
	text string
}

// partsOf returns the edits that add partFilter to the arguments of a segment.
func partsOf(m segment) []edit {
	if !strings.Contains(m.Args, "contains") {
		return nil
	}
	words, fault := split(m.Args)
	if fault != nil {
		return nil
	}
	var edits []edit
	for i := range words[:max(len(words)-1, 0)] {
		first := words[i+1]
		if words[i].kind != operator || words[i].text != "contains" || first.kind == literal && first.value.kind != isFloat {
			continue
		}
		r := needReader{source: m.Args, words: words, at: i + 1}
		r.operand()
		end := len(strings.TrimRight(m.Args[:min(r.peek().at, len(m.Args))], " \t\n\v\f\r"))
		edits = append(edits, edit{m.args + first.at, "("}, edit{m.args + end, " | " + partFilter + ")"})
	}
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.at, b.at) })
	return edits
}
