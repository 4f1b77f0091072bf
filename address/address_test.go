package address_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/address"
)

func TestPhoneNumbersAreE164(t *testing.T) {
	for _, c := range []struct{ value, region, want string }{
		{"+49 30 123456", "", "+4930123456"},
		{"+49 (0)30 123456", "", "+4930123456"},
		{" +49-30/123.456 ", "US", "+4930123456"},
		{"030 123456", "DE", "+4930123456"},
		{"0049 30 123456", "DE", "+4930123456"},
		{"011 49 30 123456", "US", "+4930123456"},
		{"(212) 555-2368", "US", "+12125552368"},
		{"1 212 555 2368", "US", "+12125552368"},
		{"+39 06 698 12345", "", "+390669812345"}, // Italy keeps the zero
		{"+49\u00a030\u00a0123456", "", "+4930123456"},
	} {
		if got, ok := address.Phone(c.value, c.region); !ok || got != c.want {
			t.Errorf("Phone(%q, %q) = %q %v, want %q", c.value, c.region, got, ok, c.want)
		}
	}
}

func TestPhoneNumbersThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ value, region string }{
		"empty":                            {"", "DE"},
		"blank":                            {" \t", "DE"},
		"a national number without region": {"030 123456", ""},
		"an IDD prefix without region":     {"0049 30 123456", ""},
		"letters":                          {"+1 800 FLOWERS", "US"},
		"a tel URI":                        {"tel:+4930123456", ""},
		"an extension with x":              {"+1 212 555 2368 x12", ""},
		"an extension in words":            {"+1 212 555 2368 ext. 12", ""},
		"an extension with #":              {"+12125552368#12", ""},
		"two numbers":                      {"+4930123456, +4930123457", ""},
		"two signs":                        {"++4930123456", ""},
		"a sign in the middle":             {"49+30123456", "DE"},
		"too few digits":                   {"+4930", ""},
		"too many digits":                  {"+49301234567890123456", ""},
		"an area code that does not exist": {"+1 100 555 2368", ""},
		"a country code that does not":     {"+999 123 4567", ""},
		"a short number":                   {"110", "DE"},
		"long":                             {"+49" + strings.Repeat(" ", 80) + "30123456", ""},
		"other digits":                     {"+٤٩٣٠١٢٣٤٥٦", ""},
	} {
		if got, ok := address.Phone(c.value, c.region); ok {
			t.Errorf("%s: %q is accepted as %s", name, c.value, got)
		}
	}
}

func TestRegionsAreCountries(t *testing.T) {
	for region, want := range map[string]bool{"DE": true, "US": true, "de": false, "XX": false, "": false, "001": false, "DEU": false} {
		if address.IsRegion(region) != want {
			t.Errorf("IsRegion(%q) is not %v", region, want)
		}
	}
}

func TestAddressesOfAValue(t *testing.T) {
	many := make([]string, address.MaxTokens+2)
	for i := range many {
		many[i] = fmt.Sprintf("%q", fmt.Sprint("t", i))
	}
	for _, c := range []struct {
		name    string
		channel lemma.Channel
		value   string
		want    []address.Address
	}{
		{"an email", lemma.Email, " Anna@Shop.Example", []address.Address{{Text: "Anna@shop.example", Canonical: "anna@shop.example"}}},
		{"no email", lemma.Email, " ", []address.Address{{Fault: address.Missing}}},
		{"a wrong email", lemma.Email, "anna", []address.Address{{Text: "anna", Fault: address.Invalid}}},
		{"a phone number", lemma.SMS, "+49 30 123456", []address.Address{{Text: "+4930123456", Canonical: "+4930123456"}}},
		{"a mobile number of Argentina", lemma.SMS, "+54 9 11 2345-6789",
			[]address.Address{{Text: "+5491123456789", Canonical: "+541123456789"}}},
		{"one without the 9", lemma.SMS, "+54 11 2345-6789", []address.Address{{Text: "+541123456789", Canonical: "+541123456789"}}},
		{"one with the 15 of local calls", lemma.SMS, "+54 11 15 2345-6789",
			[]address.Address{{Text: "+5491123456789", Canonical: "+541123456789"}}},
		{"no phone number", lemma.SMS, "", []address.Address{{Fault: address.Missing}}},
		{"a wrong phone number", lemma.SMS, "030 123456", []address.Address{{Text: "030 123456", Fault: address.Invalid}}},
		{"a token", lemma.Push, " aB:c ", []address.Address{{Text: "aB:c", Canonical: "aB:c"}}},
		{"no token", lemma.Push, "", []address.Address{{Fault: address.Missing}}},
		{"an empty list", lemma.Push, "[]", []address.Address{{Fault: address.Missing}}},
		{"a list of blanks", lemma.Push, `["", " ", null]`, []address.Address{{Fault: address.Missing}}},
		{"a list", lemma.Push, `["a", "A", "a", null, ""]`, []address.Address{{Text: "a", Canonical: "a"}, {Text: "A", Canonical: "A"}}},
		{"a list with an invalid token", lemma.Push, `["a\nb", "c"]`,
			[]address.Address{{Text: "a\nb", Fault: address.Invalid}, {Text: "c", Canonical: "c"}}},
		{"a subscription", lemma.Push, `[{"endpoint": "https://push.example/1"}]`,
			[]address.Address{{Text: `{"endpoint":"https://push.example/1"}`, Canonical: "https://push.example/1"}}},
		{"a subscription alone", lemma.Push, "{\n\t\"endpoint\": \"https://push.example/1\"\n}",
			[]address.Address{{Text: `{"endpoint":"https://push.example/1"}`, Canonical: "https://push.example/1"}}},
		{"two spellings of one subscription", lemma.Push, `[{"keys": {}, "endpoint": "https://push.example/1"},
			{"endpoint": "https://push.example/1", "expirationTime": null, "keys": {}}, {"endpoint": "https://push.example/2"}]`,
			[]address.Address{{Text: `{"keys":{},"endpoint":"https://push.example/1"}`, Canonical: "https://push.example/1"},
				{Text: `{"endpoint":"https://push.example/2"}`, Canonical: "https://push.example/2"}}},
		{"an object without endpoint", lemma.Push, `{"id": 7}`, []address.Address{{Text: `{"id":7}`, Canonical: `{"id":7}`}}},
		{"an endpoint with a line break", lemma.Push, `{"endpoint": "a\nb"}`,
			[]address.Address{{Text: `{"endpoint":"a\nb"}`, Canonical: `{"endpoint":"a\nb"}`}}},
		{"a text that only looks like an object", lemma.Push, "{x", []address.Address{{Text: "{x", Canonical: "{x"}}},
		{"a list in a list", lemma.Push, `[["a"]]`, []address.Address{{Text: `["a"]`, Canonical: `["a"]`}}},
		{"a number", lemma.Push, `[7]`, []address.Address{{Text: "7", Canonical: "7"}}},
		{"a text that only looks like a list", lemma.Push, "[x", []address.Address{{Text: "[x", Canonical: "[x"}}},
		{"a list and more", lemma.Push, `["a"] "b"`, []address.Address{{Text: `["a"] "b"`, Canonical: `["a"] "b"`}}},
		{"two lists", lemma.Push, `["a"]]`, []address.Address{{Text: `["a"]]`, Canonical: `["a"]]`}}},
		{"half a list", lemma.Push, `["a"`, []address.Address{{Text: `["a"`, Canonical: `["a"`}}},
		{"a list without commas", lemma.Push, `["a" "b"]`, []address.Address{{Text: `["a" "b"]`, Canonical: `["a" "b"]`}}},
		{"a token that is too long", lemma.Push, strings.Repeat("t", address.MaxToken+1),
			[]address.Address{{Text: strings.Repeat("t", 254), Fault: address.Invalid}}},
	} {
		if diff := cmp.Diff(c.want, address.Append(nil, c.channel, c.value, "")); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		for _, a := range c.want {
			if got := address.CanonicalOf(c.channel, a.Text); a.Fault == "" && got != a.Canonical {
				t.Errorf("%s: the canonical form of %s is %s", c.name, a.Text, got)
			}
		}
	}
	var invalid, long []string
	for range address.MaxElements - address.MaxTokens - 1 {
		invalid, long = append(invalid, fmt.Sprintf(`"a\n%d"`, len(invalid))), append(long, fmt.Sprintf(`"u%d"`, len(long)))
	}
	for name, c := range map[string]struct {
		tokens      []string
		all, faults int
	}{
		"22":                       {many, 21, 1},
		"many more":                {slices.Concat(many, long), 21, 1},
		"invalid ones, and valid":  {slices.Concat(invalid, many), 41, 21},
		"equal ones, and another":  {slices.Concat(slices.Repeat(many[:1], address.MaxElements), long[:2]), 2, 1},
		"equal ones, and a blank":  {slices.Concat(slices.Repeat(many[:1], address.MaxElements), []string{"null"}), 2, 1},
		"equal ones, and an error": {slices.Concat(slices.Repeat(many[:1], address.MaxElements+1), []string{"x"}), 2, 1},
	} {
		got := address.Append(nil, lemma.Push, "["+strings.Join(c.tokens, ",")+"]", "")
		faults := 0
		for _, a := range got {
			if a.Fault != "" {
				faults++
			}
		}
		if len(got) != c.all || faults != c.faults || got[len(got)-1].Fault != address.TooMany {
			t.Errorf("%s: %d addresses, %d faults, the last is %+v", name, len(got), faults, got[len(got)-1])
		}
	}
}

// A canonical form is an address with itself as canonical form, and every text with that
// form is one of PhoneForms.
func TestFormsOfPhoneNumbers(t *testing.T) {
	for _, number := range []string{"+5491123456789", "+541123456789", "+5492944894250", "+548002221234",
		"+5531971234567", "+553171234567", "+5531999887766", "+553133334444", "+4930123456", "+390669812345"} {
		canonical := address.Parse(lemma.SMS, number).Canonical
		if again := address.Parse(lemma.SMS, canonical); again.Fault != "" || again.Canonical != canonical {
			t.Errorf("%s: the canonical form %s is %+v", number, canonical, again)
		}
		if forms := address.PhoneForms(canonical); !slices.Contains(forms, number) || !slices.Contains(forms, canonical) {
			t.Errorf("%s: the forms are %v", number, forms)
		}
	}
}

func BenchmarkPhone(b *testing.B) {
	for b.Loop() {
		if _, ok := address.Phone("030 12345678", "DE"); !ok {
			b.Fatal("refused")
		}
	}
}
