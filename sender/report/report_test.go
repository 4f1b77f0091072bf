package report_test

import (
	"strings"
	"testing"

	"lemma"
	"lemma/sender/report"
)

func TestCode(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"smtp; 550 5.1.1 user unknown": 550, "250 2.0.0 OK": 250, "550": 550, "421-try later": 421, "5.1.1": 0, "1550 x": 0, "": 0,
		"user 550x": 0, strings.Repeat("x", 100) + " 550 ": 0, "Reply: (452) full": 452,
	} {
		if got := report.Code(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"5.1.1": "5.1.1", "smtp; 550 5.1.1 user unknown": "5.1.1", "4.2.2 (mailbox full)": "4.2.2", "10.5.1.1": "", "5.1.1.2": "",
		"3.1.1": "", "550-5.7.26 x": "5.7.26", "": "", "#5.4.4.": "5.4.4",
	} {
		if got := report.Status(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"MailboxFull": "mailbox_full", "Bounced Address": "bounced_address", "suppress-bounce": "suppress_bounce", "ESPBlock": "espblock",
		"  ä ": "", "x\x00y": "x_y", strings.Repeat("ab", 100): strings.Repeat("ab", 30), "_a_": "a",
		"OnAccountSuppressionList": "on_account_suppression_list",
	} {
		if got := report.Reason(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// A Message-ID is proven only by the key that made it, for its own notification.
func TestMessageID(t *testing.T) {
	t.Parallel()
	one, two := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID()), lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	key := report.Key("0123456789abcdef")
	local := string(key.AppendMessageID(nil, one))
	proof := strings.TrimPrefix(local, one)
	for _, c := range []struct {
		name, text   string
		key          report.Key
		notification string
		proven       bool
	}{
		{"its own", "<" + local + "@shop.example>", key, one, true},
		{"without brackets", " " + local + "@shop.example ", key, one, true},
		{"another key", "<" + local + "@shop.example>", report.Key("another key 0123"), one, false},
		{"no key", "<" + local + "@shop.example>", nil, one, false},
		{"no proof", "<" + one + "@shop.example>", key, one, false},
		{"the proof of another", "<" + two + proof + "@shop.example>", key, two, false},
		{"a short proof", "<" + local[:len(local)-1] + "@shop.example>", key, one, false},
		{"another id", "<20261122@shop.example>", key, "", false},
		{"nothing", "", key, "", false},
	} {
		notification, proven := c.key.OfMessageID(c.text)
		if notification != c.notification || proven != c.proven {
			t.Errorf("%s: %q, %v", c.name, notification, proven)
		}
	}
	if got := string(report.Key(nil).AppendMessageID(nil, one)); got != one {
		t.Errorf("without a key: %q", got)
	}
}

// An id of another form is none; that of a provider test is kept, so that its reports are
// recognised.
func TestIDsOfNotifications(t *testing.T) {
	real, test := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID()), lemma.FormatID(lemma.PrefixNotification, lemma.NewID())
	for _, id := range []string{real, test} {
		if got := report.Notification(id); got != id {
			t.Errorf("%q is %q", id, got)
		}
	}
	for _, id := range []string{"", "ntf_", real + "0", strings.ToUpper(test), lemma.FormatID(lemma.PrefixProvider, lemma.NewID())} {
		if got := report.Notification(id); got != "" || lemma.IsTestID(id) {
			t.Errorf("%q is %q", id, got)
		}
	}
}

func FuzzReport(f *testing.F) {
	for _, s := range []string{"", "smtp; 550 5.1.1 x", "<ntf_0.1@x>", "MailboxFull", "\x00\xff"} {
		f.Add(s)
	}
	key := report.Key("0123456789abcdef")
	f.Fuzz(func(t *testing.T, s string) {
		if n, _ := key.OfMessageID(s); n != "" && n != report.Notification(n) {
			t.Errorf("%q", n)
		}
		if c := report.Code(s); c != 0 && (c < 200 || c > 599) {
			t.Errorf("%d", c)
		}
		if r := report.Reason(s); len(r) > 61 || strings.Trim(r, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("%q", r)
		}
		report.Status(s)
		report.Short(s)
	})
}
