package audience

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
)

// sampleBytes bounds the memory of a sample.
const sampleBytes = 32 << 20

// reservoir draws rows from a stream of unknown length, each with the same
// chance (algorithm R: Vitter, Random Sampling with a Reservoir, 1985).
type reservoir struct {
	size  int // rows to draw; halved when they are too large
	most  int // bytes
	seen  int
	bytes int
	drawn []drawnRow
}

type drawnRow struct {
	at  int // in the stream
	row Row
}

func (v *reservoir) offer(r Row) {
	at := v.seen
	v.seen++
	place := len(v.drawn)
	if place == v.size {
		if v.size == 0 {
			return
		}
		if place = rand.IntN(v.seen); place >= v.size {
			return
		}
		v.bytes -= bytesOf(v.drawn[place].row)
	} else {
		v.drawn = append(v.drawn, drawnRow{})
	}
	r.Key, r.Email, r.Payload = strings.Clone(r.Key), strings.Clone(r.Email), strings.Clone(r.Payload)
	v.drawn[place] = drawnRow{at, r}
	if v.bytes += bytesOf(r); v.bytes > v.most && v.size > 1 {
		v.halve()
	}
}

// halve keeps half of the drawn rows, at random: they are a sample as well.
func (v *reservoir) halve() {
	rand.Shuffle(len(v.drawn), func(i, j int) { v.drawn[i], v.drawn[j] = v.drawn[j], v.drawn[i] })
	v.size = max(len(v.drawn)/2, 1)
	for _, d := range v.drawn[v.size:] {
		v.bytes -= bytesOf(d.row)
	}
	v.drawn = slices.Clone(v.drawn[:v.size])
}

func bytesOf(r Row) int { return len(r.Key) + len(r.Email) + len(r.Payload) }

// rows returns the sample in the order of the stream.
func (v *reservoir) rows() []Row {
	slices.SortFunc(v.drawn, func(a, b drawnRow) int { return cmp.Compare(a.at, b.at) })
	rows := make([]Row, len(v.drawn))
	for i, d := range v.drawn {
		rows[i] = d.row
	}
	return rows
}
