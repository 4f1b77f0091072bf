package graph

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
	"github.com/google/uuid"

	"lemma"
	"lemma/processors"
)

// Limits on what a condition may cost. A unit is about one operation; the limit stops it
// after a millisecond or two, and lets it check some 3,000 items.
const (
	costLimit  = 20_000
	maxNesting = 2 // of macros such as exists and all
)

// Condition is an expression in CEL that is true or false. It is a pure function of its
// variables, safe for concurrent use, and cannot loop.
//
// What it can read:
//
//	profile   the profile, column by column: profile.city == "Kyiv". A column
//	          that holds nothing is null, and has(profile.city) is false.
//	trigger   what enrolled the profile: trigger.name, trigger.source_id, trigger.at,
//	          trigger.properties.total > 100.0
//	events    what the profile did since it enrolled, by name: events.bought.times == 0,
//	          events.opened.last_at > now - duration("24h"),
//	          events["cart left"].last.total > 50.0 (last: the last one's properties)
//	event     the event that has just arrived: event.properties.order == trigger.properties.order
//	now       the instant of the evaluation, the same for a full chunk
//
// Triggers read profile, trigger and now; branches read events as well; exit_on
// and wait_for_event read event, trigger and now.
//
// Numbers in properties are doubles, as in JSON: they compare and compute with
// whole numbers (total * 2 > 100, total / 2 is not rounded). Whole numbers from
// 2^53 on, such as ids of 17 digits, are kept to the digit, as int or uint; one
// of more than 64 bits cannot be read: such an id is a text. What may be absent
// is asked for with has(), or as trigger.properties.?coupon.orValue("").
// A timestamp column is compared with now; a date is midnight UTC of its day.
// Columns whose names are no identifiers are written profile["first name"].
type Condition struct {
	program cel.Program
	world   *world
	uses    Uses
	names   []string // that the expression spells out: they may be reported in errors

	patterns int // bytes of memory of its patterns
}

// Uses are the variables that a condition reads.
type Uses struct {
	Profile bool
	Trigger bool
	Events  []string // names, sorted
	Event   bool
}

// Vars are the values that a condition is evaluated with, as decoded from JSON. Maps of
// variables that the condition does not use may be nil.
type Vars struct {
	Profile map[string]any // column -> value
	Trigger map[string]any // name, id, at (RFC 3339 or time.Time), properties
	Event   map[string]any // as Trigger
	Events  map[string]any // name -> map with times, first_at, last_at, last (a map, or a func that returns it); absent: never
	Now     time.Time
}

// Uses returns what the condition reads.
func (c *Condition) Uses() Uses {
	uses := c.uses
	uses.Events = slices.Clone(uses.Events)
	return uses
}

// Eval evaluates the condition. If something is absent or of another type, the result is
// false and an error that explains why without quoting data.
func (c *Condition) Eval(v Vars) (bool, error) {
	answer, _, err := c.program.Eval(activation{c.world, v})
	if err != nil {
		return false, c.plain(err)
	}
	if yes, ok := answer.Value().(bool); ok && answer.Type() == types.BoolType {
		return yes, nil
	}
	return false, errors.New("the answer is neither true nor false")
}

// evaluating bounds the conditions that are evaluated at a time outside of transactions.
var evaluating = processors.New()

// EvalInTurn is Eval once the workspace has a processor. The caller holds no transaction, which
// would be held for the time of the wait.
func (c *Condition) EvalInTurn(workspace uuid.UUID, v Vars) (bool, error) {
	defer evaluating.Enter(workspace)()
	return c.Eval(v)
}

// Holds evaluates a condition on an event; a nil condition is true. A condition that
// cannot be evaluated is false: the event is not lost for it, and ends no enrollment.
func (c *Condition) Holds(event, trigger map[string]any, now time.Time) (bool, error) {
	if c == nil {
		return true, nil
	}
	is, err := c.Eval(Vars{Event: event, Trigger: trigger, Now: now})
	return is && err == nil, err
}

// plain turns an error of the interpreter, which may quote data, into one of a closed set
// of sentences. It names only what the expression itself spells out.
func (c *Condition) plain(err error) error {
	if ours, ok := errors.AsType[*valueError](err); ok {
		return ours
	}
	if _, ok := errors.AsType[interpreter.EvalCancelledError](err); ok {
		return errors.New("it takes too long to evaluate")
	}
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "no such key: "); ok && slices.Contains(c.names, name) {
		return fmt.Errorf("there is no %s", name)
	}
	for _, known := range details {
		if strings.HasPrefix(text, known.begins) {
			return errors.New(known.detail)
		}
	}
	return errors.New("it cannot be evaluated with these values")
}

// details translate the interpreter's errors by their prefixes: the rest may be data.
var details = []struct{ begins, detail string }{
	{"no such overload", "a value is null, or of a type that the expression cannot take there"},
	{"no such key", "a name is not there; ask with has() or .? first"},
	{"no such attribute", "a name is not there; ask with has() or .? first"},
	{"index out of bounds", "a list has no such item"},
	{"division by zero", "a number is divided by zero"},
	{"modulus by zero", "a number is divided by zero"},
	{"integer overflow", "a number is too large"},
	{"unsigned integer overflow", "a number is too large"},
	{"duration overflow", "a duration is too long"},
	{"timestamp overflow", "an instant is out of range"},
	{"range error", "a number is too large"},
	{"optional.none()", "an optional value is not there; use orValue"},
	{"type conversion error", "a value cannot be converted"},
	{"unsupported type conversion", "a value cannot be converted"},
	{"invalid RFC 3339", "a value cannot be converted"},
	{"unknown time zone", "a value is no time zone"},
}

// activation gives a condition its variables; records are made on demand.
type activation struct {
	world *world
	v     Vars
}

// ResolveName implements interpreter.Activation.
func (a activation) ResolveName(name string) (any, bool) {
	switch name {
	case "profile":
		return &record{a.world, typeProfile, a.v.Profile}, true
	case "trigger":
		return &record{a.world, typeTrigger, a.v.Trigger}, true
	case "event":
		return &record{a.world, typeEvent, a.v.Event}, true
	case "events":
		return &record{a.world, typeEvents, a.v.Events}, true
	case "now":
		return types.Timestamp{Time: a.v.Now}, true
	}
	return nil, false
}

// Parent implements interpreter.Activation: there is no outer scope.
func (a activation) Parent() interpreter.Activation { return nil }

// place is what a condition is for, and thereby what it can read.
type place struct {
	what  string
	reads []string
}

var (
	enrolling = place{"a trigger's condition", []string{"profile", "trigger", "now"}}
	branching = place{"a branch", []string{"profile", "trigger", "events", "now"}}
	onEvent   = place{"a condition on an event", []string{"event", "trigger", "now"}}
)

// compiler turns expressions into conditions, for one set of columns.
type compiler struct {
	world *world
	envs  map[string]*cel.Env
	hints *hints
}

func newCompiler(columns []Column) *compiler {
	var known map[string]string
	if columns != nil {
		known = map[string]string{}
	}
	for _, column := range columns {
		known[column.Name] = column.Type
	}
	return &compiler{newWorld(known), map[string]*cel.Env{}, &hints{}}
}

// base is the part that all environments share; making it takes milliseconds.
var base = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewCustomEnv(append(append(standard(), zonedFunctions()...),
		decimals(),
		cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.EnableIdentifierEscapeSyntax(),
		cel.ParserRecursionLimit(100),
		cel.ParserErrorRecoveryLimit(8),
		cel.ParserExpressionSizeLimit(MaxExpression),
		cel.Function("_[_]", cel.Overload("record_index_string", []*cel.Type{cel.ObjectType(typeProfile), cel.StringType}, cel.DynType)),
		cel.Function("_[_]",
			cel.Overload("events_index_string", []*cel.Type{cel.ObjectType(typeEvents), cel.StringType}, cel.ObjectType(typeSeen))),
		cel.Function("_[?_]", cel.Overload("record_optindex_string", []*cel.Type{cel.ObjectType(typeProfile), cel.StringType},
			cel.OptionalType(cel.DynType))),
		cel.Function("_[?_]", cel.Overload("events_optindex_string", []*cel.Type{cel.ObjectType(typeEvents), cel.StringType},
			cel.OptionalType(cel.ObjectType(typeSeen)))),
	)...)
})

// env returns the environment of a place, made once for each compiler.
func (c *compiler) env(p place) *cel.Env {
	if env, ok := c.envs[p.what]; ok {
		return env
	}
	common, err := base()
	if err != nil {
		panic("graph: " + err.Error())
	}
	options := []cel.EnvOption{cel.CustomTypeProvider(c.world), cel.CustomTypeAdapter(c.world)}
	for _, name := range p.reads {
		options = append(options, cel.Variable(name, variables[name]))
	}
	env, err := common.Extend(options...)
	if err != nil {
		panic("graph: " + err.Error())
	}
	c.envs[p.what] = env
	return env
}

// compile returns a condition with the columns that it reads, or its faults.
func (c *compiler) compile(p place, pointer, expression string) (*Condition, reading, []lemma.Field) {
	if len(expression) > MaxExpression {
		return nil, reading{}, []lemma.Field{{Pointer: pointer, Code: "too_long",
			Detail: fmt.Sprintf("an expression has at most %d bytes", MaxExpression)}}
	}
	if at := templated.FindStringIndex(expression); at != nil {
		line, column := 1+strings.Count(expression[:at[0]],
			"\n"), 1+utf8.RuneCountInString(expression[strings.LastIndexByte(expression[:at[0]], '\n')+1:at[0]])
		return nil, reading{}, []lemma.Field{{Pointer: pointer, Code: "expression_syntax", Line: line, Column: column,
			Detail: "an expression is no template: write profile.city without {{ and }}"}}
	}
	env := c.env(p)
	parsed, issues := env.Parse(expression)
	if issues.Err() != nil {
		return nil, reading{}, syntaxOf(pointer, expression, issues)
	}
	if deep := tooDeep(parsed); deep != nil {
		at := parsed.NativeRep().SourceInfo().GetStartLocation(deep.ID())
		return nil, reading{}, []lemma.Field{located(pointer, "expression_cost", "lists, maps and optional values are nested too deep", at)}
	}
	checked, issues := check(env, parsed)
	if len(issues.Errors()) > 0 {
		return nil, reading{}, faultsOf(p, pointer, expression, issues)
	}
	read := c.read(checked)
	if !answersBool(checked.OutputType()) {
		read.fault(0, 0, "expression_type", "must be true or false, not %s: compare it with something, as in x != null",
			typed(describeTypes(cel.FormatCELType(checked.OutputType()))))
	}
	if len(read.faults) > 0 {
		for i := range read.faults {
			read.faults[i].Pointer = pointer
		}
		return nil, reading{}, read.faults
	}
	program, err := env.Program(checked, prices{map[string]int{}}.options()...)
	if err != nil {
		return nil, reading{}, []lemma.Field{{Pointer: pointer, Code: "expression_type", Detail: "it cannot be evaluated: " + err.Error()}}
	}
	return &Condition{program: program, world: c.world, uses: read.uses(), names: sorted(read.names), patterns: read.patterns}, read, nil
}

// templated matches the placeholders of template languages, which no expression has.
var templated = regexp.MustCompile(`\{\{|\{%|\$\{`)

func answersBool(t *cel.Type) bool {
	return t.IsExactType(cel.BoolType) || t.IsExactType(cel.NullableType(cel.BoolType)) || t.IsExactType(cel.DynType)
}

var (
	nullable = regexp.MustCompile(`wrapper\((\w+)\)`)
)

// describeTypes names types as the documentation does.
func describeTypes(text string) string {
	text = nullable.ReplaceAllString(text, "$1")
	return strings.NewReplacer("google.protobuf.Timestamp", "timestamp", "google.protobuf.Duration", "duration",
		typeProfile, "profile", typeTrigger, "trigger", typeEvents, "events", typeEvent, "event", typeSeen, "an event's past").Replace(text)
}

// maxTypeFaults is how many faults of one expression are reported.
const maxTypeFaults = 20

// faultsOf translates the checker's issues. Further issues of the same chain of names,
// such as b in a.b(), follow from the first and are left out.
func faultsOf(p place, pointer, expression string, issues *cel.Issues) []lemma.Field {
	var all []lemma.Field
	for _, e := range issues.Errors() {
		if len(all) == maxTypeFaults {
			break
		}
		f := located(pointer, "expression_type", describeType(e.Message, p), e.Location)
		if n := len(all); n > 0 && all[n-1].Line == f.Line && chained(expression, f.Line, all[n-1].Column, f.Column) {
			continue
		}
		all = append(all, f)
	}
	return all
}

// chain matches the text between the beginnings of two names of one chain.
var chain = regexp.MustCompile(`^\w[\w.]*$`)

// chained reports whether two columns of a line belong to one chain of names.
func chained(expression string, line, first, second int) bool {
	return first > 0 && second > first && chain.MatchString(string([]rune(before(expression, line, second-1))[first-1:]))
}

// syntaxOf translates the parser's first issue: later ones follow from how it continued.
func syntaxOf(pointer, expression string, issues *cel.Issues) []lemma.Field {
	first := issues.Errors()[0]
	detail := describeSyntax(first.Message, before(expression, first.Location.Line(), first.Location.Column()))
	return []lemma.Field{located(pointer, "expression_syntax", detail, first.Location)}
}

// located omits the place if there is none.
func located(pointer, code, detail string, at common.Location) lemma.Field {
	f := lemma.Field{Pointer: pointer, Code: code, Detail: detail}
	if at.Line() > 0 {
		f.Line, f.Column = at.Line(), max(at.Column(), 0)+1
	}
	return f
}

// uses are the variables of a reading.
func (r *reading) uses() Uses {
	return Uses{
		Profile: r.variables["profile"], Trigger: r.variables["trigger"], Event: r.variables["event"],
		Events: slices.Sorted(maps.Keys(r.events)),
	}
}
