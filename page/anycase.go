package page

import (
	"strings"
	"unicode"
)

// inAnyCase is a regular expression of Postgres that finds a text in any case. lower() and ~* of Postgres
// know the characters of the database's locale only: in the recommended locale C these are those of ASCII.
func inAnyCase(text string) string {
	var out strings.Builder
	for _, r := range text {
		folds := []rune{r}
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			folds = append(folds, f)
		}
		switch {
		case len(folds) > 1:
			out.WriteString("[" + string(folds) + "]")
		case r < unicode.MaxASCII && !unicode.IsDigit(r):
			out.WriteString("\\" + string(r)) // these characters of ASCII have two cases
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}
