package report

// depth is how deep the arrays of events are at most, in the bodies of all carriers.
const depth = 4

// LongestArray returns how many elements the longest array of a JSON text has, so that a body
// is refused before all its events are in memory. Arrays deeper than 4 levels do not count. Of
// a text that is no JSON the number means nothing.
func LongestArray(json []byte) (longest int) {
	var elements [depth]int // of the array that is open at each level; 0 for an object
	level, text := 0, false
	for i := 0; i < len(json); i++ {
		c := json[i]
		if text {
			switch c {
			case '\\':
				i++
			case '"':
				text = false
			}
			continue
		}
		switch c {
		case '"':
			text = true
		case '[', '{':
			if level++; level <= depth {
				elements[level-1] = 0
				if c == '[' {
					elements[level-1] = 1
				}
			}
		case ']', '}':
			level = max(level-1, 0)
		case ',':
			if level > 0 && level <= depth && elements[level-1] > 0 {
				elements[level-1]++
			}
		}
		if level > 0 && level <= depth {
			longest = max(longest, elements[level-1])
		}
	}
	return longest
}
