package abtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Golden: another hash would assign every running experiment and flow anew.
func TestGoldenAssignments(t *testing.T) {
	t.Parallel()
	s := NewSplit("spring", 1, 1, 8)
	var arms []int
	var buckets []uint64
	for i := range 20 {
		arms = append(arms, s.Arm(fmt.Sprintf("profile-%d", i)))
		buckets = append(buckets, s.Bucket(fmt.Sprintf("profile-%d", i)))
	}
	if d := cmp.Diff([]int{2, 2, 2, 0, 2, 2, 2, 2, 2, 2, 2, 0, 2, 1, 2, 2, 2, 1, 0, 2}, arms); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]uint64{3, 6, 4, 0, 6, 5, 8, 2, 6, 7, 9, 0, 5, 1, 4, 4, 3, 1, 0, 2}, buckets); d != "" {
		t.Error(d)
	}
	p := NewPlan("itr_1", []int{50, 30, 20}, 20, 5)
	var got []string
	for _, key := range []string{"1", "2", "3", "anna", "bert", "çelik", "", "profile-1000000"} {
		a := p.Assign(key)
		got = append(got, fmt.Sprintf("%s %d %d %d %d", a.Group, a.Variant, a.HoldoutBucket, a.SampleBucket, a.VariantBucket))
	}
	if d := cmp.Diff([]string{"rest 0 2320 7529 38", "rest 1 1176 6027 58", "rest 0 4955 2277 2", "sample 0 7054 345 38",
		"rest 2 2111 3791 85", "rest 1 3086 2293 64", "sample 0 6174 318 6", "sample 1 1837 402 57"}, got); d != "" {
		t.Error(d)
	}
	if got := s.Hash("anna"); got%10 != s.Bucket("anna") || got != 7275276241644634722 || s.HashBytes([]byte("anna")) != got {
		t.Errorf("the hash is %d", got)
	}
}

// The three splits share no salt, so that a group has the same share in every other.
func TestSplitsAreIndependent(t *testing.T) {
	t.Parallel()
	p := NewPlan("itr_2", []int{1, 1}, 30, 10)
	const n = 200_000
	var holdout, sample int
	variants := [2][3]int{}
	for i := range n {
		a := p.Assign(fmt.Sprint(i))
		if group, variant, hash := p.Deal(fmt.Sprint(i)); group != a.Group || group == Sample && variant != a.Variant ||
			group != Rest && hash != p.Variant.Hash(fmt.Sprint(i)) {
			t.Fatalf("%+v, and assigned %s, %d", a, group, variant)
		}
		switch a.Group {
		case Holdout:
			holdout++
		case Sample:
			sample++
		}
		variants[a.Variant][map[Group]int{Holdout: 0, Sample: 1, Rest: 2}[a.Group]]++
	}
	near := func(name string, got, want, within int) {
		if got < want-within || got > want+within {
			t.Errorf("%s: %d, not about %d", name, got, want)
		}
	}
	near("holdout", holdout, n/10, 600)
	near("sample", sample, n*9/10*3/10, 900)
	for i := range 2 {
		near("variant in the holdout", variants[i][0], n/20, 500)
		near("variant in the sample", variants[i][1], n*27/200, 800)
		near("variant in the rest", variants[i][2], n*63/200, 1100)
	}
	for _, salts := range [][2]string{{p.Holdout.Salt(), p.Sample.Salt()}, {p.Sample.Salt(), p.Variant.Salt()}} {
		if salts[0] == salts[1] {
			t.Errorf("two splits have the salt %q", salts[0])
		}
	}
}

func TestEdgesOfSplits(t *testing.T) {
	t.Parallel()
	all := NewPlan("itr_3", []int{1, 0, 1}, 100, 0)
	none := NewPlan("itr_3", []int{1, 1}, 0.01, 0)
	var few int
	for i := range 20_000 {
		a := all.Assign(fmt.Sprint(i))
		if a.Group != Sample || a.Variant == 1 {
			t.Fatalf("%+v", a)
		}
		if none.Assign(fmt.Sprint(i)).Group == Sample {
			few++
		}
	}
	if few > 10 {
		t.Errorf("0.01 %% of 20,000 are %d", few)
	}
	if (Split{}).Arm("x") != 0 || NewSplit("s").Arm("x") != 0 || (Split{}).Salt() != "" {
		t.Error("a split without arms")
	}
	long := strings.Repeat("s", 600)
	if NewSplit(long, 1, 1, 1).Bucket("x") > 2 {
		t.Error("a long salt")
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	p := NewPlan("itr_1", []int{1, 1}, 20, 5)
	seen := map[Group]string{}
	for i := range 1000 {
		a := p.Assign(fmt.Sprint(i))
		seen[a.Group] = p.Explain(a, []string{"A", "B"})
	}
	for group, part := range map[Group]string{Holdout: "is below 500: the profile is in the holdout and gets nothing",
		Sample: "of 2 leads to variant ", Rest: "is not below 2000: the profile is not in the sample and gets the winner"} {
		if !strings.Contains(seen[group], part) {
			t.Errorf("%s: %q", group, seen[group])
		}
	}
}

func BenchmarkAssign(b *testing.B) {
	p := NewPlan("itr_069hy00001r010000000000008", []int{40, 30, 20, 10}, 20, 5)
	b.ReportAllocs()
	for b.Loop() {
		p.Variant.Arm("customer-0123456789")
	}
}

func BenchmarkDeal(b *testing.B) {
	p := NewPlan("itr_069hy00001r010000000000008", []int{40, 30, 20, 10}, 20, 5)
	for b.Loop() {
		p.Deal("customer-0123456789")
	}
}
