package audience

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
)

// sampleBytes bounds the memory of a sample.
const sampleBytes = 32 << 20

// reservoir takes a random sample of a stream of unknown length, each row with the
// same probability (algorithm R: Vitter, Random Sampling with a Reservoir, 1985).
type reservoir struct {
	size   int // rows of the sample; halved when they are too large
	most   int // bytes
	seen   int
	bytes  int
	sample []sampledRow
}

type sampledRow struct {
	at  int // in the stream
	row Row
}

func (v *reservoir) offer(r Row) {
	at := v.seen
	v.seen++
	place := len(v.sample)
	if place == v.size {
		if v.size == 0 {
			return
		}
		if place = rand.IntN(v.seen); place >= v.size {
			return
		}
		v.bytes -= v.sample[place].row.Bytes()
	} else {
		v.sample = append(v.sample, sampledRow{})
	}
	r.Key, r.Email, r.Payload = strings.Clone(r.Key), strings.Clone(r.Email), strings.Clone(r.Payload)
	r.Phone, r.Region, r.Push = strings.Clone(r.Phone), strings.Clone(r.Region), strings.Clone(r.Push)
	v.sample[place] = sampledRow{at, r}
	if v.bytes += r.Bytes(); v.bytes > v.most && v.size > 1 {
		v.shrink()
	}
}

// shrink keeps a random half of the sample, which is a sample too.
func (v *reservoir) shrink() {
	rand.Shuffle(len(v.sample), func(i, j int) { v.sample[i], v.sample[j] = v.sample[j], v.sample[i] })
	v.size = max(len(v.sample)/2, 1)
	for _, d := range v.sample[v.size:] {
		v.bytes -= d.row.Bytes()
	}
	v.sample = slices.Clone(v.sample[:v.size])
}

// Bytes are the bytes of the strings of a row.
func (r *Row) Bytes() int {
	return len(r.Key) + len(r.Email) + len(r.Phone) + len(r.Region) + len(r.Push) + len(r.Payload)
}

// rows returns the sample in the order of the stream.
func (v *reservoir) rows() []Row {
	slices.SortFunc(v.sample, func(a, b sampledRow) int { return cmp.Compare(a.at, b.at) })
	rows := make([]Row, len(v.sample))
	for i, d := range v.sample {
		rows[i] = d.row
	}
	return rows
}
