package address_test

import (
	"strings"
	"testing"

	"lemma"
	"lemma/address"
)

func TestReportedAddressesAreReadLeniently(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel lemma.Channel
		value   string
		want    string
	}{
		{lemma.Email, "anna@shop.example", "anna@shop.example"},
		{lemma.Email, " Anna@Shop.Example\r\n", "anna@shop.example"},
		{lemma.Email, "Anna <anna@shop.example>", "anna@shop.example"},
		{lemma.Email, `"Meier, Anna" <Anna@shop.example>`, "anna@shop.example"},
		{lemma.Email, "Meier, Anna <anna@shop.example>", "anna@shop.example"},
		{lemma.Email, `"bert@shop.example" <anna@shop.example>`, "anna@shop.example"},
		{lemma.Email, "=?UTF-8?Q?=C3=84nna?= <anna@shop.example>", "anna@shop.example"},
		{lemma.Email, "Änna <anna@shop.example.>", "anna@shop.example"},
		{lemma.Email, "<anna@shop.example>", "anna@shop.example"},
		{lemma.Email, "< anna@shop.example. >", "anna@shop.example"},
		{lemma.Email, "anna@shop.example (Anna)", "anna@shop.example"},
		{lemma.Email, "anna@shop.example.", "anna@shop.example"},
		{lemma.Email, "MAILTO:anna@shop.example", "anna@shop.example"},
		{lemma.Email, "mailto:anna%2Bnews@shop.example?subject=stop", "anna+news@shop.example"},
		{lemma.Email, "<mailto:anna@shop.example>", "anna@shop.example"},
		{lemma.Email, "rfc822; anna@shop.example", "anna@shop.example"},
		{lemma.Email, "SMTP:Anna@shop.example", "anna@shop.example"},
		{lemma.Email, `'anna@shop.example'`, "anna@shop.example"},
		{lemma.Email, `"anna@shop.example"`, "anna@shop.example"},
		{lemma.Email, `"anna"@shop.example`, "anna@shop.example"},
		{lemma.Email, "anna@BÜCHER.example", "anna@xn--bcher-kva.example"},
		{lemma.Email, "Anna <anna@bücher.example.>", "anna@xn--bcher-kva.example"},
		{lemma.Email, "anna@xn--bcher-kva.example", "anna@xn--bcher-kva.example"},
		{lemma.Email, "\ufeffanna@shop.example\u200b", "anna@shop.example"},
		{lemma.Email, "o'neil@shop.example", "o'neil@shop.example"},
		{lemma.SMS, "+4930123456", "+4930123456"},
		{lemma.SMS, "4930123456", "+4930123456"},
		{lemma.SMS, " 4930123456", "+4930123456"}, // + in a form that is not encoded
		{lemma.SMS, "00 49 30 123456", "+4930123456"},
		{lemma.SMS, "0049-30-123456", "+4930123456"},
		{lemma.SMS, "+0049 30 123456", "+4930123456"},
		{lemma.SMS, "(49) 30/123.456", "+4930123456"},
		{lemma.SMS, "+49 (0)30 123456", "+4930123456"},
		{lemma.SMS, "49 (0)30 123456", "+4930123456"},
		{lemma.SMS, "tel:+49-30-123456", "+4930123456"},
		{lemma.SMS, "tel:4930123456", "+4930123456"},
		{lemma.SMS, "TEL: 004930123456", "+4930123456"},
		{lemma.SMS, "sms:+4930123456", "+4930123456"},
		{lemma.SMS, "whatsapp:+4930123456", "+4930123456"},
		{lemma.SMS, "WhatsApp:4930123456", "+4930123456"},
		{lemma.SMS, "rcs:+4930123456", "+4930123456"},
		{lemma.SMS, "whatsapp:+5215512345678", "+525512345678"}, // the number of Mexico before 2019
		{lemma.SMS, "521 55 1234 5678", "+525512345678"},
		{lemma.SMS, "whatsapp:+525512345678", "+525512345678"},
		{lemma.SMS, "whatsapp:+553199887766", "+5531999887766"}, // and that of Brazil before 2016
		{lemma.SMS, "55 (31) 9988-7766", "+5531999887766"},
		{lemma.SMS, "whatsapp:+5511999887766", "+5511999887766"},
		{lemma.SMS, "whatsapp:+553171234567", "+5531971234567"}, // valid without the 9 as well
		{lemma.SMS, "whatsapp:+5531971234567", "+5531971234567"},
		{lemma.SMS, "+553133334444", "+553133334444"},           // not a mobile number
		{lemma.SMS, "whatsapp:+5491123456789", "+541123456789"}, // a mobile number of Argentina, in both forms
		{lemma.SMS, "+54 11 2345-6789", "+541123456789"},
		{lemma.SMS, "\u202a+49\u00a030\u00a0123456\u202c", "+4930123456"},
		{lemma.SMS, "12125552368", "+12125552368"},
		{lemma.SMS, "390669812345", "+390669812345"},
		{lemma.Push, " aB:c ", "aB:c"},
		{lemma.Push, `{"keys":{}, "endpoint":"https://push.example/1"}`, "https://push.example/1"},
		{lemma.Push, "https://push.example/1", "https://push.example/1"},
		{lemma.Push, strings.Repeat("t", address.MaxToken), strings.Repeat("t", address.MaxToken)},
	} {
		got, reason := address.Reported(c.channel, c.value)
		if got != c.want || reason != "" {
			t.Errorf("%s %q: %q %s, want %q", c.channel, c.value, got, reason, c.want)
		}
		if again, _ := address.Reported(c.channel, got); again != got || got != address.Parse(c.channel, got).Canonical {
			t.Errorf("%s %q: %q is not canonical", c.channel, c.value, got)
		}
	}
}

// An address that is read wrongly would stop the messages of another person.
func TestReportedAddressesThatAreNotRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel lemma.Channel
		value   string
		reason  string
	}{
		{lemma.Email, "", address.Invalid},
		{lemma.Email, "anna", address.Invalid},
		{lemma.Email, "anna@localhost", address.Invalid},
		{lemma.Email, "anna@shop.example..", address.Invalid},
		{lemma.Email, "änna@shop.example", address.Invalid},
		{lemma.Email, `"anna b"@shop.example`, address.Invalid},
		{lemma.Email, "anna@shop.example, bert@shop.example", address.Invalid},
		{lemma.Email, "Anna <anna@shop.example>, Bert <bert@shop.example>", address.Invalid},
		{lemma.Email, "anna@shop.example, Bert <bert@shop.example>", address.Invalid},
		{lemma.Email, "anna@shop.example <bert@shop.example>", address.Invalid},
		{lemma.Email, "mailto:anna%40shop.example,bert@shop.example", address.Invalid},
		{lemma.Email, "tel:+4930123456", address.Invalid},
		{lemma.Email, "+4930123456", address.Invalid},
		{lemma.Email, strings.Repeat("a", 1001) + " <anna@shop.example>", address.Invalid},
		{lemma.SMS, "", address.Invalid},
		{lemma.SMS, "+", address.Invalid},
		{lemma.SMS, "anna@shop.example", address.Invalid},
		{lemma.SMS, "messenger:1234567890123456", address.Invalid},
		{lemma.SMS, "tel:+12125552368;ext=12", address.Invalid},
		{lemma.SMS, "tel:8631234;phone-context=+1-914", address.Invalid},
		{lemma.SMS, "sip:+4930123456@shop.example", address.Invalid},
		{lemma.SMS, "4930123456, 4930123457", address.Invalid},
		{lemma.SMS, "+999 123 4567", address.Invalid},
		{lemma.SMS, "SHOP", address.Invalid},
		{lemma.SMS, "030 123456", address.NoCountryCode},
		{lemma.SMS, "tel:030123456", address.NoCountryCode},
		{lemma.SMS, "(212) 555-2368", address.NoCountryCode},
		{lemma.SMS, "12345", address.NoCountryCode},
		{lemma.Push, " ", address.Invalid},
		{lemma.Push, "a\nb", address.Invalid},
		{lemma.Push, strings.Repeat("t", address.MaxToken+1), address.Invalid},
	} {
		if got, reason := address.Reported(c.channel, c.value); got != "" || reason != c.reason {
			t.Errorf("%s %q: %q %s, want %s", c.channel, c.value, got, reason, c.reason)
		}
	}
}

// FuzzReported: what is read is canonical, and Parse reads it too.
func FuzzReported(f *testing.F) {
	for _, seed := range []string{"Anna <anna@shop.example.>", "mailto:a%40b@c.example?x", "<\"a\"@b.example>", "tel:0049 (0)30 123456",
		"{}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, channel := range []lemma.Channel{lemma.Email, lemma.SMS, lemma.Push} {
			got, reason := address.Reported(channel, value)
			if (got == "") == (reason == "") {
				t.Errorf("%s: %q %q", channel, got, reason)
			}
			if got != "" && channel != lemma.Push && address.Parse(channel, got).Canonical != got {
				t.Errorf("%s: %q is not canonical", channel, got)
			}
			if strict := address.Parse(channel, value).Canonical; strict != "" && strict != got {
				t.Errorf("%s: %q, and by Parse %q", channel, got, strict)
			}
		}
	})
}
