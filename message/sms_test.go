package message

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
)

func TestSegmentsOfAnSMS(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Segments
	}{
		{"nothing", "", Segments{GSM7, 0, 1, 160}},
		{"a short text", "Hello", Segments{GSM7, 5, 1, 160}},
		{"the longest single segment", strings.Repeat("a", 160), Segments{GSM7, 160, 1, 160}},
		{"one septet more", strings.Repeat("a", 161), Segments{GSM7, 161, 2, 153}},
		{"two full segments", strings.Repeat("a", 306), Segments{GSM7, 306, 2, 153}},
		{"one septet more than two segments", strings.Repeat("a", 307), Segments{GSM7, 307, 3, 153}},
		{"national letters of the default alphabet", "äöüßñàèéùìòÅåÆæØøΔΩ@£¥§¿¡", Segments{GSM7, 25, 1, 160}},
		{"the euro sign counts twice", "€", Segments{GSM7, 2, 1, 160}},
		{"the extension table", "^{}\\[~]|€\f", Segments{GSM7, 20, 1, 160}},
		{"80 euro signs fill a segment", strings.Repeat("€", 80), Segments{GSM7, 160, 1, 160}},
		{"an escape is not split from its septet", strings.Repeat("a", 152) + "€" + strings.Repeat("a", 10), Segments{GSM7, 164, 2, 153}},
		{"a split escape would need one segment less", strings.Repeat("a", 152) + "€" + strings.Repeat("a", 152), Segments{GSM7, 306, 3, 153}},
		{"line breaks", "a\r\nb", Segments{GSM7, 4, 1, 160}},
		{"a letter that the alphabet lacks", "ç", Segments{UCS2, 1, 1, 70}},
		{"a backtick", "`", Segments{UCS2, 1, 1, 70}},
		{"a tab", "\t", Segments{UCS2, 1, 1, 70}},
		{"cyrillic", strings.Repeat("я", 70), Segments{UCS2, 70, 1, 70}},
		{"one unit more", strings.Repeat("я", 71), Segments{UCS2, 71, 2, 67}},
		{"two full segments of UCS2", strings.Repeat("я", 134), Segments{UCS2, 134, 2, 67}},
		{"an emoji is two units", "😀", Segments{UCS2, 2, 1, 70}},
		{"35 emoji fill a segment", strings.Repeat("😀", 35), Segments{UCS2, 70, 1, 70}},
		{"36 emoji need two", strings.Repeat("😀", 36), Segments{UCS2, 72, 2, 67}},
		{"a surrogate pair is not split", strings.Repeat("я", 66) + "😀" + strings.Repeat("я", 66), Segments{UCS2, 134, 3, 67}},
		{"the euro sign in UCS2 is one unit", "€я", Segments{UCS2, 2, 1, 70}},
	} {
		if got := SegmentsOf(c.text); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if n := len([]rune(gsm7)); n != 127 {
		t.Errorf("the default alphabet has %d characters without the escape, want 127", n)
	}
}

func TestAnSMSWithTooManySegmentsIsRefused(t *testing.T) {
	fits, tooLong := strings.Repeat("a", 153*MaxSegments), strings.Repeat("a", 153*MaxSegments+1)
	if _, err := Check(uuid.Nil, Content{Channel: "sms", Text: fits}); err != nil {
		t.Errorf("%d segments: %v", MaxSegments, err)
	}
	if _, err := Check(uuid.Nil, Content{Channel: "sms", Text: tooLong}); err == nil {
		t.Errorf("%d segments are accepted", MaxSegments+1)
	}
	c := compiled(t, Content{Channel: "sms", Text: "{{ text }}"})
	if made, err := c.Render(`{"text":"` + fits + `"}`); err != nil || made.Text != fits {
		t.Errorf("%d segments: %v", MaxSegments, err)
	}
	if _, err := c.Render(`{"text":"` + tooLong + `"}`); err == nil || !strings.Contains(lemma.Public(err), "11 SMS segments") {
		t.Errorf("%d segments are rendered: %v", MaxSegments+1, err)
	}
}
