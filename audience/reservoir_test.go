package audience

import (
	"strconv"
	"strings"
	"testing"
)

// Each row of a stream is sampled with the same probability,
// even if large rows halve the sample.
func TestASampleIsFair(t *testing.T) {
	t.Parallel()
	const n, size, rounds = 50, 10, 20_000
	for name, most := range map[string]int{"all fit": sampleBytes, "half fit": size * 3 / 2} {
		sampled, total := make([]int, n), 0
		for range rounds {
			v := reservoir{size: size, most: most}
			for i := range n {
				v.offer(Row{Key: strconv.Itoa(i)})
			}
			before := -1
			for _, r := range v.rows() {
				at, err := strconv.Atoi(r.Key)
				if err != nil || at <= before {
					t.Fatalf("%s: %q comes after %d", name, r.Key, before)
				}
				before = at
				sampled[at]++
				total++
			}
		}
		want := float64(total) / n
		for i, got := range sampled { // the standard deviation is about 60 at 4,000
			if most == sampleBytes && (float64(got) < want-350 || float64(got) > want+350) {
				t.Errorf("%s: row %d was sampled %d times, want about %.0f", name, i, got, want)
			}
		}
		if most != sampleBytes && (total == 0 || total >= rounds*size) {
			t.Errorf("%s: %d rows were sampled", name, total)
		}
	}
}

func TestASampleIsBounded(t *testing.T) {
	t.Parallel()
	v := reservoir{size: 500, most: 10_000}
	for i := range 5_000 {
		v.offer(Row{Key: strconv.Itoa(i), Payload: strings.Repeat("x", i%100)})
		if v.bytes > v.most+200 {
			t.Fatalf("%d bytes after %d rows", v.bytes, i)
		}
	}
	kept := 0
	for _, r := range v.rows() {
		kept += r.Bytes()
	}
	if kept != v.bytes || len(v.rows()) < 50 {
		t.Errorf("%d rows of %d bytes, counted %d", len(v.rows()), kept, v.bytes)
	}
	none := reservoir{}
	none.offer(Row{Key: "1"})
	if len(none.rows()) != 0 {
		t.Error("a sample of nothing has a row")
	}
}
