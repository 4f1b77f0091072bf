package sender

import (
	"regexp"
	"slices"
	"strconv"
)

// statement is a text of SQL whose parameters had names. Unlike with
// pgx.NamedArgs the names are replaced once, and traces show the final text.
type statement struct {
	text  string
	names []string // of the parameters, in their order
}

var parameter = regexp.MustCompile(`@\w+`)

func named(text string) statement {
	var s statement
	s.text = parameter.ReplaceAllStringFunc(text, func(p string) string {
		i := slices.Index(s.names, p[1:])
		if i < 0 {
			i = len(s.names)
			s.names = append(s.names, p[1:])
		}
		return "$" + strconv.Itoa(i+1)
	})
	return s
}

func (s statement) args(values map[string]any) []any {
	args := make([]any, len(s.names))
	for i, name := range s.names {
		args[i] = values[name]
	}
	return args
}
