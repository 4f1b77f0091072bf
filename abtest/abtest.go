// Package abtest assigns profiles to variants, and compares how variants perform. It
// guarantees:
//
//   - The assignment of a profile depends on a salt, the weights and the profile key
//     alone. It is independent of order, batch, retry and process, and any client can
//     recompute it.
//   - A verdict depends on the numbers that it is given alone.
//   - Without a difference between variants, Compare declares a winner in at most
//     1 - confidence of all experiments, however many variants there are.
//
// It reads and writes nothing. docs/concepts/ab-tests.md has the formulas and their
// sources.
package abtest

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Function names the hash of an assignment, as the API shows it.
const Function = "xxhash64"

// Split assigns profile keys to arms by weight.
type Split struct {
	salt []byte   // with a zero byte
	ends []uint64 // arm i has the buckets from ends[i-1] to ends[i]-1; the last is the number of buckets
}

// NewSplit makes a split of a salt and weights. An arm of weight 0 gets no profile.
func NewSplit(salt string, weights ...int) Split {
	s := Split{salt: append([]byte(salt), 0), ends: make([]uint64, len(weights))}
	var sum uint64
	for i, w := range weights {
		sum += uint64(max(w, 0))
		s.ends[i] = sum
	}
	return s
}

// Salt is the salt of the split.
func (s Split) Salt() string {
	if len(s.salt) == 0 {
		return ""
	}
	return string(s.salt[:len(s.salt)-1])
}

// Thresholds has for each arm the first bucket after its own; the last is the number of buckets.
func (s Split) Thresholds() []uint64 { return s.ends }

// Bucket is the hash of the profile key, modulo the number of buckets.
func (s Split) Bucket(profileKey string) uint64 { return s.bucketOf(s.Hash(profileKey)) }

func (s Split) bucketOf(hash uint64) uint64 {
	if len(s.ends) == 0 || s.ends[len(s.ends)-1] == 0 {
		return 0
	}
	return hash % s.ends[len(s.ends)-1]
}

// Hash is xxhash64 of the salt, a zero byte and the profile key.
func (s Split) Hash(profileKey string) uint64 { return hash(s.salt, profileKey) }

// HashBytes is Hash of a profile key that is read as bytes.
func (s Split) HashBytes(profileKey []byte) uint64 { return hash(s.salt, profileKey) }

func hash[K string | []byte](salt []byte, profileKey K) uint64 {
	var scratch [128]byte
	form := append(scratch[:0], salt...)
	form = append(form, profileKey...)
	return xxhash.Sum64(form)
}

// Arm is the arm of a profile key: the first whose threshold is above its bucket.
func (s Split) Arm(profileKey string) int { return s.armOf(s.Hash(profileKey)) }

func (s Split) armOf(hash uint64) int {
	bucket := s.bucketOf(hash)
	for i, end := range s.ends {
		if bucket < end {
			return i
		}
	}
	return 0
}

// Group is the part of an experiment that a profile belongs to.
type Group string

// The groups of an experiment.
const (
	Holdout Group = "holdout" // gets nothing
	Sample  Group = "sample"  // gets a variant at once
	Rest    Group = "rest"    // gets the winner
)

// Assignment is the group of a profile, its variant if it is in the sample, and the
// buckets that led to both.
type Assignment struct {
	Group         Group
	Variant       int // an index; of a profile that is not in the sample: the variant that it would have
	HoldoutBucket uint64
	SampleBucket  uint64
	VariantBucket uint64
}

// Plan has the three splits of an experiment. Their salts differ, so that they are
// independent of each other.
type Plan struct {
	Holdout, Sample, Variant Split
}

// percentBuckets is the number of buckets of a split by percent: 0.01 % is one bucket.
const percentBuckets = 10_000

// NewPlan makes the plan of an experiment. id is its id as the API writes it.
func NewPlan(id string, weights []int, samplePercent, holdoutPercent float64) Plan {
	return Plan{
		Holdout: percentSplit(id+"/holdout", holdoutPercent),
		Sample:  percentSplit(id+"/sample", samplePercent),
		Variant: NewSplit(id+"/variant", weights...),
	}
}

func percentSplit(salt string, percent float64) Split {
	in := int(percent*percentBuckets/100 + 0.5)
	return NewSplit(salt, in, percentBuckets-in)
}

// Assign returns the assignment of a profile. The holdout precedes the sample.
func (p Plan) Assign(profileKey string) Assignment {
	a := Assignment{Group: Rest, HoldoutBucket: p.Holdout.Bucket(profileKey), SampleBucket: p.Sample.Bucket(profileKey),
		VariantBucket: p.Variant.Bucket(profileKey), Variant: p.Variant.Arm(profileKey)}
	switch {
	case a.HoldoutBucket < p.Holdout.ends[0]:
		a.Group = Holdout
	case a.SampleBucket < p.Sample.ends[0]:
		a.Group = Sample
	}
	return a
}

// Deal returns the group of a profile and, unless it is Rest, the hash of Plan.Variant, and
// the variant of a profile in the sample. It is faster than Assign.
func (p Plan) Deal(profileKey string) (group Group, variant int, hash uint64) {
	switch {
	case p.Holdout.ends[0] > 0 && p.Holdout.Bucket(profileKey) < p.Holdout.ends[0]:
		return Holdout, 0, p.Variant.Hash(profileKey)
	case p.Sample.ends[0] < percentBuckets && p.Sample.Bucket(profileKey) >= p.Sample.ends[0]:
		return Rest, 0, 0
	}
	hash = p.Variant.Hash(profileKey)
	return Sample, p.Variant.armOf(hash), hash
}

// Explain describes an assignment as a sentence. variants are their names.
func (p Plan) Explain(a Assignment, variants []string) string {
	switch a.Group {
	case Holdout:
		return fmt.Sprintf("holdout bucket %d of %d is below %d: the profile is in the holdout and gets nothing",
			a.HoldoutBucket, percentBuckets, p.Holdout.ends[0])
	case Sample:
		return fmt.Sprintf("sample bucket %d of %d is below %d: the profile is in the sample; variant bucket %d of %d leads to variant %s",
			a.SampleBucket, percentBuckets, p.Sample.ends[0], a.VariantBucket, p.Variant.ends[len(p.Variant.ends)-1], variants[a.Variant])
	}
	return fmt.Sprintf("sample bucket %d of %d is not below %d: the profile is not in the sample and gets the winner",
		a.SampleBucket, percentBuckets, p.Sample.ends[0])
}
