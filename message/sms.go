package message

import (
	"fmt"
	"unicode/utf16"
)

// MaxSegments is the number of segments that a text may have. The user data header of
// a concatenated SMS allows 255 (3GPP TS 23.040, 9.2.3.24.1), but networks and
// carriers refuse or cut messages of more than some ten, and each segment is paid for.
const MaxSegments = 10

// Encodings of an SMS.
const (
	GSM7 = "gsm7"
	UCS2 = "ucs2"
)

// Segments is how a text is sent as SMS.
type Segments struct {
	Encoding   string // GSM7 if all its characters are in the default alphabet, otherwise UCS2
	Characters int    // units: septets of GSM7, UTF-16 code units of UCS2
	Segments   int
	PerSegment int // units that fit in each of them
}

// SegmentsOf counts the segments of a text (3GPP TS 23.038, 6.2.1 and 6.2.3; TS 23.040,
// 9.2.3.24). One segment has 140 bytes: 160 septets or 70 UTF-16 code units. Each of
// several has a header of 6 bytes, which leaves 153 or 67. A character of the extension
// table is an escape and a septet. Neither it nor a surrogate pair is split.
func SegmentsOf(text string) Segments {
	s, size := Segments{Encoding: GSM7, PerSegment: 160}, septets
	long := 153
	for _, c := range text {
		if septets(c) == 0 {
			s, size, long = Segments{Encoding: UCS2, PerSegment: 70}, utf16.RuneLen, 67
			break
		}
	}
	for _, c := range text {
		s.Characters += size(c)
	}
	if s.Characters <= s.PerSegment {
		s.Segments = 1
		return s
	}
	s.PerSegment = long
	used := long
	for _, c := range text {
		if used+size(c) > long {
			s.Segments++
			used = 0
		}
		used += size(c)
	}
	return s
}

// checkSegments returns why a text cannot be sent as SMS, or "".
func checkSegments(text string) refused {
	if n := SegmentsOf(text).Segments; n > MaxSegments {
		return refused(fmt.Sprintf("the text has %d SMS segments; must have at most %d", n, MaxSegments))
	}
	return ""
}

// gsm7 is the default alphabet (TS 23.038, 6.2.1), without the escape.
const gsm7 = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?" +
	"¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"

// gsm7Extension is its extension table (6.2.1.1).
const gsm7Extension = "\f^{}\\[~]|€"

var gsm7Sizes = func() map[rune]int {
	sizes := make(map[rune]int, 140)
	for _, c := range gsm7 {
		sizes[c] = 1
	}
	for _, c := range gsm7Extension {
		sizes[c] = 2
	}
	return sizes
}()

// septets is the size of a character in GSM7; 0: it is not in the alphabet.
func septets(c rune) int { return gsm7Sizes[c] }
