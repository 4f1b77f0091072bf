package abtest

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat/distuv"
)

func near(t *testing.T, name string, got, want, within float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > within {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}

// Newcombe, Two-sided confidence intervals for the single proportion, Statistics in
// Medicine 17 (1998) 857-872, table I, method 3.
func TestWilson(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		Count
		low, high float64
	}{{Count{263, 81}, 0.2553, 0.3662}, {Count{148, 15}, 0.0624, 0.1605}, {Count{20, 0}, 0, 0.1611}, {Count{29, 1}, 0.0061, 0.1718}} {
		got := c.Wilson(0.95)
		near(t, "low", got.Low, c.low, 0.00005)
		near(t, "high", got.High, c.high, 0.00005)
	}
	for n := range int64(100) {
		if none, all := (Count{n + 1, 0}).Wilson(0.95), (Count{n + 1, n + 1}).Wilson(0.95); none.Low != 0 || all.High != 1 {
			t.Errorf("of %d, none or all converted: %v, %v", n+1, none, all)
		}
	}
	if got := (Count{}).Wilson(0.95); got != (Interval{0, 1}) {
		t.Errorf("without recipients: %v", got)
	}
}

// Newcombe, Interval estimation for the difference between independent proportions,
// Statistics in Medicine 17 (1998) 873-890, table II, method 10.
func TestDifference(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b      Count
		low, high float64
	}{
		{Count{70, 56}, Count{80, 48}, 0.0524, 0.3339},
		{Count{10, 9}, Count{10, 3}, 0.1705, 0.8090},
		{Count{10, 10}, Count{20, 0}, 0.6791, 1},
	} {
		got := Difference(c.a, c.b, 0.95)
		near(t, "low", got.Low, c.low, 0.0001)
		near(t, "high", got.High, c.high, 0.0001)
	}
}

// Agresti, An Introduction to Categorical Data Analysis, 2nd edition (2007), 2.2.2 and
// 2.4.3: myocardial infarction with placebo and aspirin. The square of z is Pearson's
// chi-square, 25.01.
func TestZTest(t *testing.T) {
	t.Parallel()
	z, p := ZTest(Count{11034, 189}, Count{11037, 104})
	near(t, "z squared", z*z, 25.01, 0.01)
	near(t, "p", p, 5.7e-7, 1e-8)
	if z, p := ZTest(Count{10, 0}, Count{10, 0}); z != 0 || p != 1 {
		t.Errorf("without variance: %v, %v", z, p)
	}
}

// The example of R's documentation of p.adjust, and the one of Holm's procedure in
// which two of four hypotheses are rejected at 0.05.
func TestHolm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ p, want []float64 }{
		{[]float64{0.01, 0.02, 0.03, 0.04, 0.05}, []float64{0.05, 0.08, 0.09, 0.09, 0.09}},
		{[]float64{0.01, 0.04, 0.03, 0.005}, []float64{0.03, 0.06, 0.06, 0.02}},
		{[]float64{0.9, 0.8}, []float64{1, 1}},
	} {
		for i, got := range Holm(c.p) {
			near(t, "adjusted p", got, c.want[i], 1e-12)
		}
	}
}

// The closed form for two variants: Miller, Formulas for Bayesian A/B testing (2014),
// formula 6.
func TestChanceToBeBest(t *testing.T) {
	t.Parallel()
	closed := func(a, b Count) (sum float64) {
		aa, ba := float64(a.Converted)+1, float64(a.Recipients-a.Converted)+1
		ab, bb := int(b.Converted)+1, float64(b.Recipients-b.Converted)+1
		for i := range ab {
			x := float64(i)
			sum += math.Exp(mathext.Lbeta(aa+x, ba+bb) - math.Log(bb+x) - mathext.Lbeta(1+x, bb) - mathext.Lbeta(aa, ba))
		}
		return sum
	}
	for _, c := range [][2]Count{{{1000, 100}, {1000, 120}}, {{50, 3}, {70, 9}}, {{200_000, 2000}, {200_000, 2100}}, {{10, 0}, {10, 0}}} {
		near(t, "chance", ChanceToBeBest(c[:])[1], closed(c[0], c[1]), 1e-6)
	}
	got := ChanceToBeBest([]Count{{500, 50}, {500, 50}, {500, 50}, {500, 50}})
	for _, p := range got {
		near(t, "chance of four equal variants", p, 0.25, 1e-6)
	}
}

// Fabijan et al., Diagnosing sample ratio mismatch in online controlled experiments,
// KDD 2019: 821,588 and 815,482 users of an even split, p = 1.8e-6.
func TestSampleRatioMismatch(t *testing.T) {
	t.Parallel()
	near(t, "p", SampleRatioMismatch([]int64{821_588, 815_482}, []int{1, 1}), 1.8e-6, 1e-7)
	near(t, "p of an exact split", SampleRatioMismatch([]int64{500, 300, 200}, []int{50, 30, 20}), 1, 1e-12)
	near(t, "p of nothing", SampleRatioMismatch([]int64{0, 0}, []int{1, 1}), 1, 0)
}

// The examples of R's documentation of power.prop.test.
func TestPower(t *testing.T) {
	t.Parallel()
	d := Design{BaseRate: 0.5, Effect: 0.25, Variants: 2, Confidence: 0.95, Power: 0.9}
	if n := d.RequiredSample(); n != 77 { // 76.7
		t.Errorf("required: %d", n)
	}
	near(t, "power of 50", d.PowerOf(50), 0.740, 0.0005)
	near(t, "effect that 50 find", d.SmallestEffect(50), 0.3026, 0.0001)
	if d.Warning(77) != "" || !strings.Contains(d.Warning(50), "needs 77") {
		t.Error(d.Warning(50))
	}
	d.BaseRate, d.Effect = 0.999, 0.0001
	if !math.IsNaN(d.SmallestEffect(2)) {
		t.Error("two recipients find an effect")
	}
}

// experiments simulates experiments and counts those in which a variant wins.
func experiments(n int, recipients int64, rates []float64, confidence float64) (wins []int) {
	source := rand.NewPCG(11, uint64(recipients))
	wins = make([]int, len(rates))
	for range n {
		all := make([]Observed, len(rates))
		counts := make([]Count, len(rates))
		for i, rate := range rates {
			converted := distuv.Binomial{N: float64(recipients), P: rate, Src: source}.Rand()
			counts[i] = Count{recipients, int64(converted)}
			all[i] = Observed{Weight: 1, Sent: recipients, Count: counts[i]}
		}
		if v := decide(all, counts, Rules{Confidence: confidence, MinSample: 100}); v.Outcome == Significant {
			wins[v.Best]++
		}
	}
	return wins
}

func sum(of []int) (n int) {
	for _, one := range of {
		n += one
	}
	return n
}

// Without a difference at most 1 - confidence of 10,000 experiments have a winner.
// Three standard deviations of that number are allowed for.
func TestNoDifferenceSeldomHasAWinner(t *testing.T) {
	t.Parallel()
	const n = 10_000
	for _, c := range []struct {
		rate       float64
		variants   int
		recipients int64
		confidence float64
	}{{0.05, 2, 2000, 0.95}, {0.3, 2, 500, 0.9}, {0.02, 2, 10_000, 0.99}, {0.1, 3, 1000, 0.95}, {0.05, 8, 2000, 0.95}} {
		rates := make([]float64, c.variants)
		for i := range rates {
			rates[i] = c.rate
		}
		alpha := 1 - c.confidence
		most := n*alpha + 3*math.Sqrt(n*alpha*(1-alpha))
		wins := sum(experiments(n, c.recipients, rates, c.confidence))
		t.Logf("%+v: %d winners of %d experiments, %.0f allowed", c, wins, n, n*alpha)
		if float64(wins) > most {
			t.Errorf("%+v: %d of %d experiments have a winner", c, wins, n)
		}
	}
}

// With the required sample the declared power is reached within 2 points.
func TestRequiredSampleReachesThePower(t *testing.T) {
	t.Parallel()
	const n = 10_000
	for _, d := range []Design{
		{BaseRate: 0.05, Effect: 0.01, Variants: 2, Confidence: 0.95, Power: 0.8},
		{BaseRate: 0.2, Effect: 0.03, Variants: 2, Confidence: 0.9, Power: 0.9},
		{BaseRate: 0.5, Effect: -0.05, Variants: 2, Confidence: 0.99, Power: 0.8},
	} {
		wins := experiments(n, d.RequiredSample(), []float64{d.BaseRate, d.BaseRate + d.Effect}, d.Confidence)
		t.Logf("%+v: %d per variant, %d of %d found", d, d.RequiredSample(), sum(wins), n)
		near(t, "power", float64(sum(wins))/n, d.Power, 0.02)
	}
	d := Design{BaseRate: 0.1, Effect: 0.02, Variants: 4, Confidence: 0.95, Power: 0.8}
	wins := experiments(n, d.RequiredSample(), []float64{0.1, 0.1, 0.12, 0.1}, d.Confidence)
	t.Logf("%+v: %d per variant, %v of %d found", d, d.RequiredSample(), wins, n)
	if wins[2] < n*78/100 || sum(wins) > wins[2]+n/100 {
		t.Errorf("of %d experiments the variants won %v", n, wins)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	rules := Rules{Confidence: 0.95, MinSample: 500}
	variant := func(name string, recipients, converted int64) Observed {
		return Observed{Name: name, Weight: 1, Sent: recipients, Count: Count{recipients, converted}}
	}
	for name, c := range map[string]struct {
		all      []Observed
		outcome  Outcome
		best     int
		sentence string
	}{
		"a winner": {[]Observed{variant("A", 5000, 200), variant("B", 5000, 300)}, Significant, 1,
			"B wins: 6.00 % of its recipients converted, 2.00 % more than of A (between 1.15 % and 2.86 % at a confidence of 95.00 %)."},
		"chance": {[]Observed{variant("A", 5000, 200), variant("B", 5000, 210)}, NotSignificant, 1,
			"B has the highest rate (4.20 %), but the difference may be chance at a confidence of 95.00 %."},
		"two equally good": {[]Observed{variant("A", 5000, 200), variant("B", 5000, 300), variant("C", 5000, 301)}, NotSignificant, 2, ""},
		"too few":          {[]Observed{variant("A", 400, 20), variant("B", 400, 80)}, TooFewSent, 1, ""},
		"no events":        {[]Observed{variant("A", 5000, 0), variant("B", 5000, 0)}, NoEvents, 0, ""},
		"few events":       {[]Observed{variant("A", 5000, 1), variant("B", 5000, 40)}, TooFewEvents, 1, ""},
		"all converted":    {[]Observed{variant("A", 5000, 5000), variant("B", 5000, 4000)}, TooFewEvents, 0, ""},
		"mismatch":         {[]Observed{variant("A", 5000, 200), variant("B", 4000, 300)}, RatioMismatch, 1, ""},
		"a tie":            {[]Observed{variant("A", 5000, 200), variant("B", 5000, 200)}, NotSignificant, 0, ""},
	} {
		v := Compare(c.all, rules)
		if v.Outcome != c.outcome || v.Best != c.best || c.sentence != "" && v.Sentence != c.sentence || v.Sentence == "" {
			t.Errorf("%s: %s, best %d: %s", name, v.Outcome, v.Best, v.Sentence)
		}
		if len(v.Comparisons) != len(c.all)-1 || len(v.ChanceToBeBest) != len(c.all) {
			t.Errorf("%s: %d comparisons", name, len(v.Comparisons))
		}
	}
}
