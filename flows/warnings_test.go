package flows_test

import (
	"strings"
	"testing"
)

// Settings that are probably not intended are warned of, and others are not.
func TestWarningsOfWhatIsSeldomMeant(t *testing.T) {
	b := setup(t, 0)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"x"}],"recurrence":{"policy":"once"},"start":"deal","nodes":{
		"deal":{"type":"split","arms":[{"name":"a","weight":1,"next":"ask"},{"name":"b","weight":1,"next":"z"},
			{"weight":1,"next":"z"},{"weight":1,"next":"z"}]},
		"ask":{"type":"branch","cases":[{"sql":"select p.profile_key from People p","next":"z"},{"if":"true","next":"z"}],"else":"z"},
			"z":{"type":"exit"}}}`
	for _, c := range []struct{ from, to, want string }{
		{"", "", ""},
		{`"name":"b"`, `"name":"a"`, `node deal has several arms named "a"`},
		{`"policy":"once"}`, `"policy":"once"},"overlap":"allow"`, `overlap is "allow" and recurrence "once"`},
		{`"policy":"once"}`, `"policy":"daily"},"overlap":"allow"`, ""},
		{`"policy":"once"}`, `"policy":"once"},"overlap":"deny"`, ""},
		{"select p.profile_key from People p", "select customer_id from orders", "node ask has a case in SQL that does not use people"},
		{"select p.profile_key from People p", "select id as peoples_id from customers",
			"node ask has a case in SQL that does not use people"},
	} {
		v := b.validate(strings.Replace(text, c.from, c.to, 1))
		switch {
		case !v.Valid || c.want == "" && len(v.Warnings) > 0:
			t.Errorf("%s: %+v", c.to, v)
		case c.want != "" && (len(v.Warnings) != 1 || !strings.HasPrefix(v.Warnings[0], c.want)):
			t.Errorf("%s: %q, want %s", c.to, v.Warnings, c.want)
		}
	}
}
