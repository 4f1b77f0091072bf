package graph

import (
	"fmt"
	"strings"
)

// nearest is the name with the smallest edit distance (Levenshtein), if that is small for
// its length, or empty.
func nearest(name string, names []string) string {
	best, least := "", 1+max(1, len(name)/3)
	if len(name) > maxName || len(name) < 2 {
		return "" // longer than any valid name, or as near to each other one of its length
	}
	for _, candidate := range names {
		if len(candidate) >= len(name)+least {
			continue
		}
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// didYouMean is the hint that a fault adds when a name is near.
func didYouMean(name string, names []string) string {
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// mostHints bounds what the hints of one definition compare, in pairs of bytes: some 50 ms.
const mostHints = 10_000_000

// hints bounds the hints of one definition: it may name thousands of columns that an audience of
// thousands does not have.
type hints struct{ spent int }

// hint is didYouMean for a name that is none of a map's, or nothing when others have spent too much.
func hint[T any](h *hints, name string, known map[string]T) string {
	if h.spent > mostHints {
		return ""
	}
	for other := range known {
		h.spent += len(name)*len(other) + sortCost
	}
	return didYouMean(name, sorted(known))
}

// sortCost is what sorting a name costs, as pairs of bytes.
const sortCost = 64

// distance is the number of single characters to insert, delete or replace, or
// of neighbours to swap, that make one text of the other (optimal string
// alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
