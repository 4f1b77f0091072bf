package message

// fastWork bounds the bytes that filters and comparisons of a text read: this path has neither a slot of processors nor a
// meter, and takes a millisecond or two for as many. The engine, which has both, renders what needs more.
const fastWork = 256 << 10

// costOf are the filters that read their text several times.
var costOf = map[string]int{"capitalize": 4, "upcase": 2, "downcase": 2}

// does adds up work. It reports whether the fast path may do so much.
func (p *output) does(work int) bool {
	p.work += work
	return p.work <= fastWork
}
