package sender

import (
	"strings"
	"testing"
	"time"
)

// A detail has no address, however it is written, and 200 bytes.
func TestDetailsHaveNoAddress(t *testing.T) {
	long := strings.Repeat("x", 190)
	for _, c := range []struct{ text, address, want string }{
		{"550 no mailbox Ada@Shop.example here", "ada@shop.example", "550 no mailbox [address] here"},
		{"ada@shop.example", "ADA@SHOP.EXAMPLE", "[address]"},
		{"ada@shop.exampleada@shop.example.", "ada@shop.example", "[address][address]."},
		{"no Zoë@shop.example or zoË@shop.example", "ZOË@shop.example", "no [address] or [address]"},
		{"ΣΊΣΥΦΟΣ@x", "σίσυφος@x", "[address]"},
		{"\u212Aai@x", "kai@x", "\u212Aai@x"}, // KELVIN SIGN has three bytes
		{"no address", "", "no address"},
		{"a", "ab", "a"},
		{long + " ada@shop.example", "ada@shop.example", long + " [address]"},
		{long + "a ada@shop.example", "ada@shop.example", long + "a [address"},
		{strings.Repeat("ada@shop.example ", 30), "ada@shop.example", strings.Repeat("[address] ", 20)},
		{strings.Repeat("b", 10) + strings.Repeat("a", 5000), strings.Repeat("a", 4096), "bbbbbbbbbb[address]" + strings.Repeat("a", 181)},
		{strings.Repeat("a", 5000), strings.Repeat("a", 4097), strings.Repeat("a", 200)}, // no address is so long
		{"x\xff" + "ada@\xffshop", "ada@\xffshop", "x ada@ shop"},
	} {
		if got := Detail(nil, c.text, c.address); got != c.want {
			t.Errorf("%.40q without %.40q: %q", c.text, c.address, got)
		}
	}
}

// Text and address of a stranger may be as long as a webhook. Comparing them at each place takes minutes.
func TestDetailsOfLongTexts(t *testing.T) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, recipient := range []string{strings.Repeat("É", 2048), strings.Repeat("É", 170_000), strings.Repeat("A", 4095) + "b"} {
			Detail(nil, strings.Repeat("é", 250_000)+strings.Repeat("a", 500_000), recipient)
		}
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("it takes longer than 10 s")
	}
}
