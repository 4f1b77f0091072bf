package graph

import (
	"regexp"
	"regexp/syntax"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// CEL charges a comparison by the lengths of the lists and not by their contents, a
// pattern by its length and not by its repetitions, and both only afterwards: an event of
// 32 KiB could keep a worker busy for minutes. Here they are charged by their work, and an
// operation that costs more than a whole condition may is not begun.

const (
	maxPattern   = 1000 // instructions of a regular expression
	stepsPerUnit = 50   // of a regular expression; one is 2 to 10 ns
	bytesPerUnit = 20   // of a text that is converted, measured or copied; one is 0.2 to 2 ns
	zonePrice    = 50   // to load a time zone, 3 us

	hashedPerUnit = 1000 // bytes of a key that is looked up
)

var errCost = &valueError{"it takes too long to evaluate"}

// prices are the costs of the expensive operations of one condition.
type prices struct{ patterns map[string]int } // pattern -> instructions

// maxPatternBytes bounds the memory of all patterns of a definition, which is some thousand times as much as their text.
const maxPatternBytes = 2 << 20

const tooManyPatterns = "the patterns of a definition may take 2 MiB of memory together: repeat less, " +
	"above all classes such as \\pL in a pattern that begins with ^"

// patternBytes is the memory of a compiled pattern, estimated: in a pattern that begins with ^, package regexp copies the
// ranges of characters that may come next for each instruction.
func patternBytes(pattern string) int {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	const instruction, bound = 130, 6
	bytes := instruction * len(program.Inst)
	if first := program.Inst[program.Start]; first.Op != syntax.InstEmptyWidth || syntax.EmptyOp(first.Arg)&syntax.EmptyBeginText == 0 {
		return bytes
	}
	next := make([]int, len(program.Inst)) // bounds of the ranges that may come next; 0: not known yet
	for i := range program.Inst {
		bytes += bound * nextBounds(program, uint32(i), next)
	}
	return bytes
}

// nextBounds counts the bounds of the ranges of characters that may come next at an instruction.
func nextBounds(p *syntax.Prog, at uint32, known []int) int {
	if known[at] > 0 {
		return known[at]
	}
	known[at] = 1 // a loop ends here
	i := p.Inst[at]
	switch i.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		known[at] = nextBounds(p, i.Out, known) + nextBounds(p, i.Arg, known)
	case syntax.InstCapture, syntax.InstEmptyWidth, syntax.InstNop:
		known[at] = nextBounds(p, i.Out, known)
	default:
		known[at] = 1 + len(i.Rune)
	}
	return known[at]
}

// bound puts a check before the expensive operations of a plan.
func (p prices) bound(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || len(call.Args()) != 2 {
		return i, nil
	}
	var do func(a, b ref.Val) ref.Val
	switch call.Function() {
	case operators.Equals:
		do = types.Equal
	case operators.NotEquals:
		do = func(a, b ref.Val) ref.Val { return types.Bool(types.Equal(a, b) != types.True) }
	case operators.In:
		do = isIn
	default:
		return i, nil
	}
	return p.checked(call, do), nil
}

// options make a program that is charged by its work. CEL compiles patterns once for all
// overloads; an option for one overload takes precedence.
func (p prices) options() []cel.ProgramOption {
	options := []cel.ProgramOption{cel.CostLimit(costLimit), cel.CostTracking(p), cel.CustomDecoratorV2(p.bound),
		cel.EvalOptions(cel.OptOptimize)}
	for _, overload := range []string{overloads.Matches, overloads.MatchesString} {
		options = append(options, cel.OptimizeRegex(&interpreter.RegexOptimization{
			Function: overloads.Matches, OverloadID: overload, RegexIndex: 1, Factory: p.pattern}))
	}
	return options
}

// pattern compiles a pattern once. That each is a literal was checked before.
func (p prices) pattern(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	if p.patterns[pattern], err = types.RegexProgramSize(pattern); err != nil {
		return nil, err
	}
	return p.checked(call, func(a, _ ref.Val) ref.Val {
		text, ok := a.(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(a)
		}
		return types.Bool(compiled.MatchString(string(text)))
	}), nil
}

func (p prices) checked(call interpreter.InterpretableCall, do func(a, b ref.Val) ref.Val) interpreter.InterpretableCall {
	function := call.Function()
	return interpreter.NewCall(call.ID(), function, call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
		if price, dear := p.of(function, args); dear && price > costLimit {
			return types.WrapErr(errCost) // CallCost then ends the evaluation
		}
		return do(args[0], args[1])
	})
}

// CallCost is called by the interpreter after each call.
func (p prices) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	price, dear := p.of(function, args)
	if !dear {
		return nil // CEL's own price
	}
	cost := uint64(price)
	return &cost
}

// of is the price of a call; dear is false where CEL's own price is right.
func (p prices) of(function string, args []ref.Val) (price int, dear bool) {
	switch {
	case len(args) == 1:
		return 1 + bytesOf(args[0])/bytesPerUnit, slices.Contains(conversions, function)
	case len(args) != 2:
		return 0, false
	}
	a, b := args[0], args[1]
	switch function {
	case operators.Add:
		n := bytesOf(a) + bytesOf(b)
		return 1 + n/bytesPerUnit, n > 0
	case operators.Equals, operators.NotEquals:
		steps, _ := comparisons(a, b, costLimit)
		return steps, true
	case operators.In:
		list, ok := b.(traits.Lister)
		if !ok {
			return 1 + bytesOf(a)/hashedPerUnit, isText(a)
		}
		if isContainer(a) {
			return 1 + weigh(b, costLimit), true
		}
		return 1 + lengthOf(list), true
	case overloads.Matches:
		text, isText := a.(types.String)
		pattern, _ := b.(types.String)
		return 1 + len(text)*p.patterns[string(pattern)]/stepsPerUnit, isText
	}
	if _, isTime := a.(types.Timestamp); isTime && isText(b) {
		return zonePrice, true
	}
	n := bytesOf(a) + bytesOf(b) // of contains
	if slices.Contains(compares, function) {
		n = min(bytesOf(a), bytesOf(b))
	}
	return 1 + n/bytesPerUnit, isText(a) || isText(b)
}

// compares read no more than the shorter of two texts. CEL's own price is that, too, but to find it CEL counts the
// characters of both.
var compares = []string{operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals, overloads.StartsWith,
	overloads.EndsWith}

// isText reports whether a value is a text, also inside of an optional.
func isText(v ref.Val) bool {
	if o, is := v.(*types.Optional); is && o.HasValue() {
		return isText(o.GetValue())
	}
	_, is := v.(types.String)
	return is
}

// conversions read a whole text, which CEL charges as one unit.
var conversions = []string{
	overloads.Size, overloads.TypeConvertBool, overloads.TypeConvertBytes, overloads.TypeConvertDouble, overloads.TypeConvertDuration,
	overloads.TypeConvertInt, overloads.TypeConvertString, overloads.TypeConvertTimestamp, overloads.TypeConvertUint,
}

// bytesOf is the length of a text, also inside of an optional; 0 of other values.
func bytesOf(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case *types.Optional:
		if v.HasValue() {
			return bytesOf(v.GetValue())
		}
	}
	return 0
}

func isIn(a, b ref.Val) ref.Val {
	container, ok := b.(traits.Container)
	if !ok {
		return types.MaybeNoSuchOverloadErr(b)
	}
	return container.Contains(a)
}

func isContainer(v ref.Val) bool {
	switch v := v.(type) {
	case *types.Optional:
		return v.HasValue() && isContainer(v.GetValue())
	case traits.Lister, traits.Mapper:
		return true
	}
	return false
}

func lengthOf(v traits.Sizer) int {
	n, _ := v.Size().(types.Int)
	return int(n)
}

// comparisons counts the comparisons by which two values are compared, as types.Equal does: up to where they differ. It stops
// above most.
func comparisons(a, b ref.Val, most int) (steps int, same bool) {
	if o, is := a.(*types.Optional); is && o.HasValue() {
		if p, is := b.(*types.Optional); is && p.HasValue() {
			return comparisons(o.GetValue(), p.GetValue(), most)
		}
		return 1, false
	}
	switch a := a.(type) {
	case types.String:
		return 1 + min(bytesOf(a), bytesOf(b))/bytesPerUnit, a.Equal(b) == types.True
	case traits.Mapper:
		if of, is := b.(traits.Mapper); is {
			return compareMaps(a, of, most)
		}
		return 1, false
	case traits.Lister:
		if of, is := b.(traits.Lister); is {
			return compareLists(a, of, most)
		}
		return 1, false
	}
	return 1 + min(bytesOf(a), bytesOf(b))/bytesPerUnit, !isContainer(b) && types.Equal(a, b) == types.True
}

func compareLists(a, b traits.Lister, most int) (steps int, same bool) {
	n := lengthOf(a)
	if n != lengthOf(b) {
		return 1, false
	}
	steps = 1
	for i := range n {
		more, same := comparisons(a.Get(types.Int(i)), b.Get(types.Int(i)), most-steps)
		if steps += more; !same || steps > most {
			return steps, false
		}
	}
	return steps, true
}

// compareMaps counts all keys besides, since they are copied first.
func compareMaps(a, b traits.Mapper, most int) (steps int, same bool) {
	n := lengthOf(a)
	if n != lengthOf(b) {
		return 1, false
	}
	if steps = 1 + n; steps > most {
		return steps, false
	}
	for keys := a.Iterator(); keys.HasNext() == types.True; {
		key := keys.Next()
		value, there := b.Find(key)
		if !there {
			return steps, false
		}
		more, same := comparisons(a.Get(key), value, most-steps)
		if steps += more; !same || steps > most {
			return steps, false
		}
	}
	return steps, true
}

// weigh counts the values inside v, and a tenth of the bytes of its texts. It stops above
// most.
func weigh(v ref.Val, most int) int {
	total := 1
	var items traits.Iterator
	switch v := v.(type) {
	case types.String:
		return total + len(v)/10
	case types.Bytes:
		return total + len(v)/10
	case *types.Optional:
		if v.HasValue() {
			return total + weigh(v.GetValue(), most-total)
		}
		return total
	case traits.Lister:
		items = v.Iterator()
	case traits.Mapper:
		items = v.Iterator()
	default:
		return total
	}
	m, isMap := v.(traits.Mapper)
	for total <= most && items.HasNext() == types.True {
		item := items.Next()
		total += weigh(item, most-total)
		if isMap {
			total += weigh(m.Get(item), most-total)
		}
	}
	return total
}
