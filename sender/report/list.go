package report

// MostEvents is how many events a carrier's body may have. Those of SendGrid have the most: it
// sends at most 768 KiB, and an event has some 300 bytes.
const MostEvents = 5_000

// depth is how deep the arrays of events are at most, in the bodies of all carriers.
const depth = 4

// LongestArray returns how many elements the longest array of a JSON text has, so that a body
// is refused before all its events are in memory. Arrays deeper than 4 levels do not count. Of
// a text that is no JSON the number means nothing.
func LongestArray(json []byte) (longest int) {
	var elements [depth + 2]int // of the array that is open at each level; 0 for an object. The last is that of all others
	level, text := 0, false
	for i := 0; i < len(json); i++ {
		c := json[i]
		switch {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '[', c == '{':
			level++
			elements[min(level, depth+1)] = 0
			if c == '[' {
				elements[min(level, depth+1)] = 1
			}
		case c == ']', c == '}':
			level = max(level-1, 0)
		case c == ',' && elements[min(level, depth+1)] > 0:
			elements[min(level, depth+1)]++
		}
		if level <= depth {
			longest = max(longest, elements[level])
		}
	}
	return longest
}
