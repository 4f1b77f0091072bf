package enrollment

// OnceEach divides items into rounds with at most one item of a name, in their order.
func OnceEach[T any](all []T, of func(T) string) [][]T {
	var parts [][]T
	times := make(map[string]int, len(all))
	for _, one := range all {
		n := times[of(one)]
		times[of(one)]++
		if n == len(parts) {
			parts = append(parts, nil)
		}
		parts[n] = append(parts[n], one)
	}
	return parts
}
