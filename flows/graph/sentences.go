package graph

import (
	"fmt"
	"regexp"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

// What the parser says lists the names of all tokens that could follow; what is
// told is the token that cannot be there, and what was probably meant.

var (
	unexpected = regexp.MustCompile(`^(?:mismatched|extraneous|no viable alternative at) input '(.*?)'(?: expecting (.*))?$`)
	unknown    = regexp.MustCompile(`(?s)^token recognition error at: '(.*)'$`)
	absent     = regexp.MustCompile(`^missing ('.*') at '(.*)'$`)
	undeclared = regexp.MustCompile(`^undeclared reference to '(\w+)'`)
)

// meant is what CEL writes instead of words that other languages have.
var meant = map[string]string{
	"and": "write && for and", "or": "write || for or", "not": "write ! for not", "=": "write == to compare",
}

// saySyntax words a message of the parser about what stands behind before.
func saySyntax(message, before string) string {
	said, ours := strings.CutPrefix(message, "Syntax error: ")
	if strings.Contains(message, "recursion limit exceeded") {
		return "parentheses and the like are nested too deep, more than 100 levels"
	}
	if !ours {
		return message
	}
	if found := unexpected.FindStringSubmatch(said); found != nil {
		return sayUnexpected(found[1], found[2], before)
	}
	if found := absent.FindStringSubmatch(said); found != nil {
		return fmt.Sprintf("%s is missing%s", found[1], where(found[2]))
	}
	if found := unknown.FindStringSubmatch(said); found != nil {
		return sayUnknown(strings.TrimSpace(found[1]), before)
	}
	first, _, _ := strings.Cut(said, " expecting ")
	return first
}

func where(token string) string {
	if token == "<EOF>" {
		return " at the end"
	}
	return fmt.Sprintf(" before %q", token)
}

func sayUnexpected(token, expected, before string) string {
	if hint := meant[strings.ToLower(token)]; hint != "" {
		return fmt.Sprintf("%q has no meaning here: %s", token, hint)
	}
	if last := strings.Fields(before); len(last) > 0 && strings.EqualFold(last[len(last)-1], "not") {
		return fmt.Sprintf("%q has no meaning here: %s", last[len(last)-1], meant["not"])
	}
	missing := ""
	if expected != "" && expected != "<EOF>" && !strings.HasPrefix(expected, "{") {
		missing = ": " + expected + " is missing"
	}
	if token == "<EOF>" {
		return "it ends too early" + missing
	}
	return fmt.Sprintf("%q cannot stand here%s", token, missing)
}

func sayUnknown(token, before string) string {
	switch {
	case token == "=" && !strings.HasSuffix(before, "="):
		return fmt.Sprintf("%q has no meaning here: %s", token, meant[token])
	case (token == "&" || token == "|") && !strings.HasSuffix(before, token):
		return fmt.Sprintf("%q has no meaning here: write it twice", token)
	case strings.HasPrefix(token, "'") || strings.HasPrefix(token, `"`):
		return "the text that begins here is not closed"
	}
	return fmt.Sprintf("%q has no meaning here", token)
}

// sayType words a message of the checker.
func sayType(message string) string {
	detail := sayTypes(strings.ReplaceAll(message, " (in container '')", ""))
	if found := undeclared.FindStringSubmatch(detail); found != nil && meant[strings.ToLower(found[1])] != "" {
		return fmt.Sprintf("%q has no meaning here: %s", found[1], meant[strings.ToLower(found[1])])
	}
	return detail
}

// before is what an expression has in front of a place.
func before(expression string, line, column int) string {
	lines := strings.Split(expression, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	runes := []rune(lines[line-1])
	return string(runes[:min(max(column, 0), len(runes))])
}

// constant finds texts that the expression spells out and that are not what a
// function takes: no data could make it work.
func (r *reading) constant(call ast.CallExpr) {
	args := call.Args()
	if len(args) == 0 || args[len(args)-1].Kind() != ast.LiteralKind {
		return
	}
	arg := args[len(args)-1]
	text, isText := arg.AsLiteral().(types.String)
	if !isText {
		return
	}
	switch call.FunctionName() {
	case "duration":
		if types.IsError(text.ConvertToType(types.DurationType)) {
			r.faultAt(arg, "expression_type", "it is no duration: the units are h, m and s, as in duration('48h') or duration('1h30m')")
		}
	case "timestamp":
		if types.IsError(text.ConvertToType(types.TimestampType)) {
			r.faultAt(arg, "expression_type", "it is no timestamp as in RFC 3339: timestamp('2026-01-31T09:00:00Z')")
		}
	case "matches":
		if _, err := regexp.Compile(string(text)); err != nil {
			r.faultAt(arg, "expression_type", "it is no regular expression: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		}
	default:
		if zoned[call.FunctionName()] != "" && !isZone(string(text)) {
			r.faultAt(arg, "expression_type", "must be an IANA time zone such as 'Europe/Berlin', or an offset such as '+02:00'")
		}
	}
}
