package graph

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

// The parser's messages list all tokens that could follow. These functions report the
// token that is wrong, and what was probably meant.

var (
	unexpected = regexp.MustCompile(`^(?:mismatched|extraneous|no viable alternative at) input '(.*?)'(?: expecting (.*))?$`)
	unknown    = regexp.MustCompile(`(?s)^token recognition error at: '(.*)'$`)
	absent     = regexp.MustCompile(`^missing ('.*') at '(.*)'$`)
	undeclared = regexp.MustCompile(`^undeclared reference to '(\w+)'`)
)

// meant maps words of other languages to CEL's.
var meant = map[string]string{
	"and": "write && for and", "or": "write || for or", "not": "write ! for not", "=": "write == to compare",
	"is": "write == null or != null", "null": "write null", "none": "write null", "nil": "write null", "true": "write true",
	"false":   "write false",
	"like":    "write text.contains(part), text.startsWith(part), text.endsWith(part) or text.matches(pattern)",
	"between": "write x >= low && x <= high", "<>": "write != for not equal",
	"today": "now is the instant of the evaluation, such as profile.seen_at > now - duration('24h')",
	"now":   "now is a variable, without parentheses",
	"count": "events.NAME.times counts events, size(list) how long a list is",
	"len":   "write size(x)", "length": "write size(x)", "lower": "write text.matches('(?i)^pattern$') to ignore case",
	"upper": "write text.matches('(?i)^pattern$') to ignore case",
}

// functions are the names suggested for a misspelt function.
var functions = []string{"contains", "startsWith", "endsWith", "matches", "size", "has", "exists", "exists_one", "all", "filter", "map",
	"duration", "timestamp", "int", "uint", "double",
	"string", "bool", "getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes",
	"getSeconds", "orValue", "optional"}

// describeSyntax rewrites a message of the parser about the text after before.
func describeSyntax(message, before string) string {
	detail, ours := strings.CutPrefix(message, "Syntax error: ")
	if strings.Contains(message, "recursion limit exceeded") {
		return "parentheses and the like are nested too deep, more than 100 levels"
	}
	if strings.HasPrefix(message, "invalid argument to has()") {
		return "has() asks whether a field is there, as in has(profile.city)"
	}
	if !ours {
		return message
	}
	if found := unexpected.FindStringSubmatch(detail); found != nil {
		return describeUnexpected(found[1], found[2], before)
	}
	if found := absent.FindStringSubmatch(detail); found != nil {
		return fmt.Sprintf("%s is missing%s", found[1], where(found[2]))
	}
	if found := unknown.FindStringSubmatch(detail); found != nil {
		return describeUnknown(strings.TrimSpace(found[1]), before)
	}
	first, _, _ := strings.Cut(detail, " expecting ")
	return first
}

func where(token string) string {
	if token == "<EOF>" {
		return " at the end"
	}
	return fmt.Sprintf(" before %q", token)
}

func describeUnexpected(token, expected, before string) string {
	if token == ">" && strings.HasSuffix(before, "<") {
		token = "<>"
	}
	if hint := meant[strings.ToLower(token)]; hint != "" {
		return fmt.Sprintf("%q has no meaning here: %s", token, hint)
	}
	if token == "," && inTuple.MatchString(before) {
		return `a list is written in brackets, as in profile.city in ["Kyiv", "Lviv"]`
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
	return fmt.Sprintf("%q is not allowed here%s", token, missing)
}

func describeUnknown(token, before string) string {
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

// inTuple is a list in parentheses, as SQL writes it, up to its first comma.
var inTuple = regexp.MustCompile(`\bin\s*\([^()]*$`)

var (
	overload = regexp.MustCompile(`^found no matching overload for '(.*)' applied to '(.*)'$`)
	noField  = regexp.MustCompile(`^undefined field '(.*)'$`)
	notBool  = regexp.MustCompile(`^expected type 'bool' but found '(.*)'$`)
)

// describeType rewrites a message of the checker about an expression in a place.
func describeType(message string, p place) string {
	detail := describeTypes(strings.ReplaceAll(message, " (in container '')", ""))
	detail, _, _ = strings.Cut(detail, " (did you mean")
	if found := undeclared.FindStringSubmatch(detail); found != nil {
		return describeUndeclared(found[1], p)
	}
	if found := overload.FindStringSubmatch(detail); found != nil {
		return describeOverload(found[1], found[2])
	}
	if found := noField.FindStringSubmatch(detail); found != nil {
		return describeField(found[1])
	}
	if found := notBool.FindStringSubmatch(detail); found != nil {
		return fmt.Sprintf("&&, || and ! need a bool, not %s: compare it with something, as in x != null", typed(found[1]))
	}
	return detail
}

func describeUndeclared(name string, p place) string {
	if _, elsewhere := variables[name]; elsewhere && (name != "now" || !slices.Contains(p.reads, name)) {
		return fmt.Sprintf("%s cannot be read in %s, only %s", name, p.what, strings.Join(p.reads, ", "))
	}
	if hint := meant[strings.ToLower(name)]; hint != "" {
		return fmt.Sprintf("%q has no meaning here: %s", name, hint)
	}
	if near := didYouMean(name, append(slices.Clone(p.reads), functions...)); near != "" {
		return fmt.Sprintf("there is no %s%s", name, near)
	}
	return fmt.Sprintf("there is no %s; a text is written in quotes, and %s can be read", name, strings.Join(p.reads, ", "))
}

// describeField describes an unknown field of trigger, event or an event's past.
func describeField(name string) string {
	if name == "count" {
		return "there is no field count: times counts the events"
	}
	fields := append(sorted(eventShape), sorted(seenShape)...)
	if near := didYouMean(name, fields); near != "" {
		return fmt.Sprintf("there is no field %s%s", name, near)
	}
	return fmt.Sprintf("there is no field %s; the event's own fields are in its properties, as in trigger.properties.%s", name, name)
}

// written maps the checker's names of operators to their spelling.
var written = strings.NewReplacer("@in", "in", "_[_]", "[ ]", "_?_:_", "? :", "_", "")

// describeOverload names the types that an operator or function does not take together,
// and how to convert one of them.
func describeOverload(name, applied string) string {
	receiver, arguments, isMethod := strings.Cut(applied, ".(")
	if !isMethod {
		receiver, arguments = "", strings.TrimPrefix(applied, "(")
	}
	var given []string
	for t := range strings.SplitSeq(strings.TrimSuffix(arguments, ")"), ", ") {
		if t != "" {
			given = append(given, typed(t))
		}
	}
	what := fmt.Sprintf("%q cannot take %s", written.Replace(name), strings.Join(given, " and "))
	if isMethod {
		what = fmt.Sprintf("%q of %s cannot take %s", name, typed(receiver), strings.Join(given, " and "))
	}
	return what + castOf(name, given)
}

// typed names a type with its article.
func typed(t string) string {
	switch t {
	case "string":
		return "a text"
	case "int", "uint":
		return "a whole number (" + t + ")"
	case "double":
		return "a number (double)"
	case "bool":
		return "true or false"
	case "timestamp", "duration":
		return "a " + t
	}
	return t
}

// castOf is how the given types can be made compatible.
func castOf(name string, given []string) string {
	has := func(t string) bool {
		return slices.ContainsFunc(given, func(g string) bool { return strings.HasPrefix(g, typed(t)) })
	}
	number := has("int") || has("uint") || has("double")
	switch {
	case name == "duration":
		return "; write duration('48h'), with the units h, m and s"
	case name == "timestamp":
		return "; write timestamp('2026-01-31T09:00:00Z')"
	case name == "@in":
		return `; the right side must be a list, as in x in ["a", "b"], or for a part of a text text.contains(part)`
	case name == "_?_:_":
		return "; before ? must be a condition, and both results must have one type"
	case has("timestamp") && has("string"):
		return "; write the text as timestamp('2026-01-31T09:00:00Z')"
	case (has("timestamp") || has("duration")) && number:
		return "; write a span as duration('48h'), with the units h, m and s"
	case has("int") && has("double"):
		return "; write whole numbers as 5.0 beside numbers with a fraction"
	case has("string") && number:
		return "; convert one: int(text), double(text) or string(number)"
	case has("bool") && number:
		return "; true and false are no numbers: write (x ? 1 : 0)"
	case has("bool") && has("string"):
		return "; write true and false without quotes"
	}
	return ""
}

// before is the text of an expression before a place.
func before(expression string, line, column int) string {
	lines := strings.Split(expression, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	runes := []rune(lines[line-1])
	return string(runes[:min(max(column, 0), len(runes))])
}

// repeated is about how many instructions a pattern has when its repeats are written out.
func repeated(p *syntax.Regexp) int {
	n := 1
	if p.Op == syntax.OpLiteral {
		n = len(p.Rune)
	}
	for _, part := range p.Sub {
		n += repeated(part)
	}
	if p.Op == syntax.OpRepeat {
		n *= max(p.Min, p.Max, 1)
	}
	return min(n, 1_000_000)
}

// constant finds literals that a function does not accept: no data could make them work.
func (r *reading) constant(call ast.CallExpr) {
	args := call.Args()
	if len(args) == 0 {
		return
	}
	arg := args[len(args)-1]
	if arg.Kind() != ast.LiteralKind {
		if call.FunctionName() == "matches" {
			r.faultAt(arg, "expression_cost", "a pattern is written in the expression: it cannot come from data, or be computed")
		}
		return
	}
	text, isText := arg.AsLiteral().(types.String)
	if !isText {
		return
	}
	switch call.FunctionName() {
	case "duration":
		if types.IsError(text.ConvertToType(types.DurationType)) {
			meant, ok := meantSpan(string(text))
			r.faultAt(arg, "expression_type", "it is no duration: the units are h, m and s, as in duration('48h') or duration('1h30m')%s",
				hintIf(ok, fmt.Sprintf("; write duration('%s')", spelledGo(meant))))
		}
	case "timestamp":
		if types.IsError(text.ConvertToType(types.TimestampType)) {
			r.faultAt(arg, "expression_type", "it is no timestamp as in RFC 3339: timestamp('2026-01-31T09:00:00Z')")
		}
	case "matches":
		if parsed, err := syntax.Parse(string(text), syntax.Perl); err != nil {
			r.faultAt(arg, "expression_type", "it is no regular expression: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		} else if size := repeated(parsed); size > 4*maxPattern { // compiled, it would take a tenth of a second
			r.faultAt(arg, "expression_cost", "the pattern has some %d instructions; %d are allowed: repeat less, as in [a-z]{1,64}", size,
				maxPattern)
		} else if size, err := types.RegexProgramSize(string(text)); err != nil || size > maxPattern {
			r.faultAt(arg, "expression_cost", "the pattern has %d instructions; %d are allowed: repeat less, as in [a-z]{1,64}", size,
				maxPattern)
		} else if r.patterns += patternBytes(string(text)); r.patterns > maxPatternBytes {
			r.faultAt(arg, "expression_cost", tooManyPatterns)
		}
	default:
		if zoned[call.FunctionName()] != "" && !isZone(string(text)) {
			r.faultAt(arg, "expression_type", "must be an IANA time zone such as 'Europe/Berlin', or an offset such as '+02:00'")
		}
	}
}
