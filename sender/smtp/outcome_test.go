package smtp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/pgtest"
	"lemma/sender"
)

// result is the part of a receipt that the table fixes.
type result struct {
	Outcome  sender.Outcome
	Provider bool
	Code     int
	Reason   string
}

func results(receipts []sender.Receipt) []result {
	all := make([]result, len(receipts))
	for i, r := range receipts {
		all[i] = result{r.Outcome, r.Provider, r.Code, r.Reason}
	}
	return all
}

// The table of the package's comment, row by row: three messages are sent, and
// something happens to the second. Each row is played with PIPELINING and
// without.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	accepted := result{sender.Accepted, false, 250, ""}
	for _, c := range []struct {
		name   string
		verb   string
		reply  string
		second result
		kept   int // bodies of the second that the server saw to the end
	}{
		{"mail refused for now", "MAIL", "450 4.7.1 slow down", result{sender.NotAccepted, true, 450, "sender_refused"}, 0},
		{"mail refused for good", "MAIL", "550 5.7.1 not you", result{sender.NotAccepted, true, 550, "sender_rejected"}, 0},
		{"too large for mail", "MAIL", "552 5.3.4 too large", result{sender.Rejected, false, 552, "message_too_large"}, 0},
		{"recipient refused for now", "RCPT", "450 4.2.0 greylisted", result{sender.NotAccepted, false, 450, "recipient_refused"}, 0},
		{"recipient refused for good", "RCPT", "550 5.7.1 not to them", result{sender.Rejected, false, 550, "recipient_rejected"}, 0},
		{"recipient refused without a status code", "RCPT", "550 no such user", result{sender.Rejected, false, 550, "recipient_rejected"}, 0},
		{"recipient unknown", "RCPT", "550-5.1.1 no\r\n550 5.1.1 such user", result{sender.Rejected, false, 550, "recipient_unknown"}, 0},
		{"recipient has moved", "RCPT", "551 5.1.6 moved", result{sender.Rejected, false, 551, "recipient_unknown"}, 0},
		{"a domain without mail", "RCPT", "556 5.1.10 no mail here", result{sender.Rejected, false, 556, "recipient_unknown"}, 0},
		{"the sender refused with the recipient", "RCPT", "550 5.1.0 <news@shop.example>: Sender address rejected: User unknown",
			result{sender.Rejected, false, 550, "recipient_rejected"}, 0},
		{"the sender refused by another code", "RCPT", "550 5.1.1 <news@shop.example>: SENDER address rejected",
			result{sender.Rejected, false, 550, "recipient_rejected"}, 0},
		{"a relay refused", "RCPT", "554 5.1.2 <x@y.example>: Relay denied", result{sender.Rejected, false, 554, "recipient_rejected"}, 0},
		{"too many messages", "RCPT", "550 5.2.1 receiving mail at a rate that prevents additional messages",
			result{sender.Rejected, false, 550, "recipient_rejected"}, 0},
		{"data refused with the code of an address", "DATA", "550 5.1.1 no", result{sender.Rejected, false, 550, "data_rejected"}, 0},
		{"data refused for now", "DATA", "451 4.3.0 later", result{sender.NotAccepted, false, 451, "data_refused"}, 0},
		{"data refused for good", "DATA", "554 5.6.0 never", result{sender.Rejected, false, 554, "data_rejected"}, 0},
		{"message refused for now", "body", "451 4.3.0 later", result{sender.NotAccepted, false, 451, "message_refused"}, 1},
		{"message refused for good", "body", "554 5.7.1 spam", result{sender.Rejected, false, 554, "message_rejected"}, 1},
		{"closing after the dot", "body", "421 4.3.2 closing" + hangUp, result{sender.NotAccepted, true, 421, "service_closing"}, 1},
		{"closing before the body is not the message's matter", "MAIL", "421 4.3.2 closing" + hangUp, accepted, 1},
		{"lost before the body is replaced once", "DATA", hangUp, accepted, 1},
		{"lost after the dot", "body", hangUp, result{sender.Unknown, false, 0, "connection_lost"}, 1},
		{"nonsense after the dot", "body", "hello there", result{sender.Unknown, false, 0, "protocol_error"}, 1},
		{"a code that makes no sense after the dot", "body", "354 more", result{sender.Unknown, false, 354, "protocol_error"}, 1},
		{"too many answers after the dot", "body", "250 ok\r\n250 ok", result{sender.Unknown, false, 0, "protocol_error"}, 1},
		{"an endless line after the dot", "body", "250 " + strings.Repeat("x", 20000),
			result{sender.Unknown, false, 0, "protocol_error"}, 1},
		{"endless lines after the dot", "body", strings.Repeat("250-x\r\n", 20000) + "250 x",
			result{sender.Unknown, false, 0, "protocol_error"}, 1},
		{"no answer after the dot", "body", hang, result{sender.Unknown, false, 0, "timeout"}, 1},
		{"endless lines after the dot, slowly", "body", drip, result{sender.Unknown, false, 0, "timeout"}, 1},
		{"endless lines to RCPT, slowly", "RCPT", drip, result{sender.NotAccepted, false, 0, "timeout"}, 0},
		{"no answer to MAIL", "MAIL", hang, result{sender.NotAccepted, true, 0, "timeout"}, 0},
		{"no answer to RCPT", "RCPT", hang, result{sender.NotAccepted, false, 0, "timeout"}, 0},
		{"no answer to DATA", "DATA", hang, result{sender.NotAccepted, false, 0, "timeout"}, 0},
	} {
		for _, offers := range []string{"PIPELINING 8BITMIME", "8BITMIME"} {
			t.Run(c.name+"/"+offers, func(t *testing.T) {
				t.Parallel()
				s := serve(t, &server{offers: offers, answer: func(verb string, n int) string {
					if verb == c.verb && n == 2 {
						return c.reply
					}
					return ""
				}})
				carrier := carrierTo(t, s, "")
				if c.reply == hang || c.reply == drip {
					carrier.timeout = 2 * time.Second // the other messages keep to it as well
				}
				got := carrier.Send(t.Context(), messages(3))
				if diff := cmp.Diff([]result{accepted, c.second, accepted}, results(got)); diff != "" {
					t.Errorf("receipts (-want +got):\n%s", diff)
				}
				want := map[string]int{"<ntf_1@shop.example>": 1, "<ntf_3@shop.example>": 1}
				if c.kept > 0 {
					want["<ntf_2@shop.example>"] = c.kept
				}
				if diff := cmp.Diff(want, s.copies()); diff != "" {
					t.Errorf("bodies at the server (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// What keeps a connection from being made is known before any message leaves.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, verb, reply, config string
		want                      result
	}{
		{"greeting refused", "greeting", "554 go away", "", result{sender.NotAccepted, true, 554, "greeting_refused"}},
		{"too many connections", "greeting", "421 too many", "", result{sender.NotAccepted, true, 421, "greeting_refused"}},
		{"closed at once", "greeting", hangUp, "", result{sender.NotAccepted, true, 0, "greeting_refused"}},
		{"no answer", "greeting", hang, "", result{sender.NotAccepted, true, 0, "greeting_refused"}},
		{"ehlo refused", "EHLO", "502 no", "", result{sender.NotAccepted, true, 502, "ehlo_refused"}},
		{"starttls not offered", "", "", `"tls":"starttls"`, result{sender.NotAccepted, true, 0, "tls_failed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, _ int) string {
				if verb == c.verb {
					return c.reply
				}
				return ""
			}})
			carrier := carrierTo(t, s, c.config)
			carrier.pool.failures = 20 // the pause after the first message is long enough for the others
			if c.reply == hang {
				carrier.timeout = time.Second
			}
			got := carrier.Send(t.Context(), messages(3))
			backoff := result{sender.NotCalled, true, c.want.Code, c.want.Reason} // with the cause of the failed call
			if diff := cmp.Diff([]result{c.want, backoff, backoff}, results(got)); diff != "" {
				t.Errorf("receipts (-want +got):\n%s", diff)
			}
			if got[0].Definite != (c.want.Code >= 500) || got[2].Detail != got[0].Detail {
				t.Errorf("definite: %v; the messages after it have %q, not %q", got[0].Definite, got[2].Detail, got[0].Detail)
			}
			if s.receiptFor("MAIL") != 0 || s.connections() != 1 {
				t.Errorf("%d MAIL on %d connections, want none on one", s.receiptFor("MAIL"), s.connections())
			}
		})
	}
}

// A connection that was used before and broke is replaced before a message's
// body has begun, once; a new connection that is lost is not.
func TestReplacesADeadConnectionOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, n int) string {
		if verb == "MAIL" && n >= 2 {
			return hangUp
		}
		return ""
	}})
	c := carrierTo(t, s, "")
	got := results(c.Send(t.Context(), messages(2)))
	if want := (result{sender.NotAccepted, true, 0, "connection_lost"}); got[1] != want {
		t.Errorf("got %+v, want %+v", got[1], want)
	}
	if s.connections() != 2 {
		t.Errorf("%d connections, want 2", s.connections())
	}
}

// A connection that received something while it was idle, such as a 421, is
// detected before it is used.
func TestAnIdleConnectionIsChecked(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING"})
	c := carrierTo(t, s, "")
	if r := c.Send(t.Context(), messages(1)); r[0].Outcome != sender.Accepted {
		t.Fatalf("%+v", r)
	}
	s.mu.Lock()
	_, _ = s.held[0].Write([]byte("421 idle for too long\r\n"))
	s.mu.Unlock()
	pgtest.Eventually(t, 10*time.Second, "the connection is not alive", func() bool { return !c.pool.resting[0].conn.alive() })
	if r := c.Send(t.Context(), messages(1)); r[0].Outcome != sender.Accepted {
		t.Errorf("%+v", r)
	}
	if s.connections() != 2 || s.receiptFor("MAIL") != 2 {
		t.Errorf("%d connections, %d MAIL, want 2 and 2", s.connections(), s.receiptFor("MAIL"))
	}
}

// 421 is the end of a connection, also when the server does not close it.
func TestNothingIsSentAfter421(t *testing.T) {
	t.Parallel()
	for _, offers := range []string{"PIPELINING", ""} {
		s := serve(t, &server{offers: offers, answer: func(verb string, n int) string {
			if verb == "body" && n == 1 {
				return "421 closing"
			}
			return ""
		}})
		got := carrierTo(t, s, "").Send(t.Context(), messages(2))
		if got[0].Reason != "service_closing" || got[1].Outcome != sender.Accepted || s.connections() != 2 {
			t.Errorf("%+v on %d connections", results(got), s.connections())
		}
	}
}

// A server may grant DATA although it refused the only recipient. The bare dot
// answers it and no mail comes of it; otherwise RSET ends the transaction.
func TestRefusedRecipientInAGroup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		data, want string
		after      []string
	}{
		{"354 go on", "RCPT refused, DATA granted", []string{"MAIL", "RCPT", "DATA", "MAIL", "RCPT", "DATA"}},
		{"503 no recipients", "both refused", []string{"MAIL", "RCPT", "DATA", "RSET", "MAIL", "RCPT", "DATA"}},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, n int) string {
				switch {
				case verb == "RCPT" && n == 1:
					return "550 5.1.1 no user <User1@Example.test> here"
				case verb == "DATA" && n == 1:
					return c.data
				case verb == "body" && n == 1 && c.data[0] == '3':
					return "554 no recipients"
				}
				return ""
			}})
			got := carrierTo(t, s, "").Send(t.Context(), messages(2))
			if got[0].Reason != "recipient_unknown" || got[1].Outcome != sender.Accepted {
				t.Errorf("%+v", got)
			}
			if want := "5.1.1 no user <[address]> here"; got[0].Detail != want {
				t.Errorf("detail %q, want %q", got[0].Detail, want)
			}
			if diff := cmp.Diff(c.after, s.verbs()); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			for id := range s.copies() {
				if id != "<ntf_2@shop.example>" {
					t.Errorf("a body of %s", id)
				}
			}
		})
	}
}

// With MAIL refused but RCPT and DATA granted, a dot could make an empty mail.
func TestNoDotWhereARecipientCouldGetIt(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, n int) string {
		if verb == "MAIL" && n == 1 {
			return "550 no"
		}
		return ""
	}})
	got := carrierTo(t, s, "").Send(t.Context(), messages(2))
	if got[0].Reason != "sender_rejected" || got[1].Outcome != sender.Accepted {
		t.Errorf("%+v", got)
	}
	if len(s.kept()) != 1 || s.connections() != 2 {
		t.Errorf("%d bodies on %d connections, want 1 on 2", len(s.kept()), s.connections())
	}
}

// verbs are the commands behind EHLO.
func (s *server) verbs() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands[1:] {
		verb, _, _ := strings.Cut(c, " ")
		all = append(all, verb)
	}
	return all
}

// A message over the announced SIZE is not sent, wherever it stands.
func TestSize(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{answer: func(verb string, _ int) string {
		if verb == "EHLO" {
			return "250-test\r\n250-PIPELINING\r\n250 SIZE 5000"
		}
		return ""
	}})
	all := messages(5)
	for _, i := range []int{0, 2, 4} {
		all[i].HTML = strings.Repeat("long ", 2000)
	}
	large, ok := result{sender.Rejected, false, 0, "message_too_large"}, result{sender.Accepted, false, 250, ""}
	if diff := cmp.Diff([]result{large, ok, large, ok, large}, results(carrierTo(t, s, "").Send(t.Context(), all))); diff != "" {
		t.Errorf("receipts (-want +got):\n%s", diff)
	}
	for i, body := range s.kept() {
		if want := fmt.Sprintf("SIZE=%d", len(body)); !strings.HasSuffix(s.commands[1+3*i], want) {
			t.Errorf("%q, want %s", s.commands[1+3*i], want)
		}
	}
}

// What cannot be written as a mail is rejected without a call, and the messages
// beside it are not touched.
func TestUnwritableMessages(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING"})
	all := messages(9)
	all[0].To = "a@b.test>\r\nRCPT TO:<c@d.test"
	all[2].Subject = "one\r\nBcc: two@example.test"
	all[3].FromName = "x\ny"
	all[4].Headers = [][2]string{{"X-Note", "a\r\nb"}}
	all[5].Headers = [][2]string{{"X Note", "a"}}
	all[6].Headers = [][2]string{{"Bcc", "z@example.test"}}
	all[8].ReplyTo = "ü@example.test"
	got := carrierTo(t, s, "").Send(t.Context(), all)
	for i, r := range got {
		want := sender.Rejected
		if i == 1 || i == 7 {
			want = sender.Accepted
		}
		if r.Outcome != want || (want == sender.Rejected && r.Reason != "message_invalid") {
			t.Errorf("message %d: %+v", i, r)
		}
	}
	if diff := cmp.Diff(map[string]int{"<ntf_2@shop.example>": 1, "<ntf_8@shop.example>": 1}, s.copies()); diff != "" {
		t.Error(diff)
	}
}

// One round trip per message: body and next envelope leave in one piece, but
// only where the server has sent that it can take that.
func TestGroups(t *testing.T) {
	t.Parallel()
	for offers, want := range map[string]int{"PIPELINING": 51, "8BITMIME": 200} {
		s := serve(t, &server{offers: offers})
		c := carrierTo(t, s, "")
		conn, refusal := c.dial(t.Context())
		if refusal != nil {
			t.Fatal(refusal)
		}
		writes := 0
		conn.conn = &counting{Conn: conn.conn, writes: &writes}
		l := c.pool.take(t.Context())
		l.conn = conn
		c.pool.give(l)
		for _, r := range c.Send(t.Context(), messages(50)) {
			if r.Outcome != sender.Accepted || r.CarrierID != "ABC123" {
				t.Fatalf("%+v", r)
			}
		}
		if writes != want {
			t.Errorf("%s: %d writes for 50 messages, want %d", offers, writes, want)
		}
	}
}

// 421 to the first envelope on a fresh connection is the server's last word.
func TestClosingOnAFreshConnection(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, _ int) string {
		if verb == "MAIL" {
			return "421 4.3.2 closing" + hangUp
		}
		return ""
	}})
	got := results(carrierTo(t, s, "").Send(t.Context(), messages(1)))
	if want := (result{sender.NotAccepted, true, 421, "service_closing"}); got[0] != want {
		t.Errorf("got %+v, want %+v", got[0], want)
	}
	if s.connections() != 1 {
		t.Errorf("%d connections, want 1", s.connections())
	}
}

// When the answers to the envelope behind a body make no sense, the body's own
// answer may have been to something else.
func TestInvalidRepliesBehindABody(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, n int) string {
		if verb == "body" && n == 1 {
			return "250 ok\r\n250 and again"
		}
		return ""
	}})
	got := results(carrierTo(t, s, "").Send(t.Context(), messages(2)))
	if got[0].Outcome != sender.Unknown || got[1].Outcome != sender.Accepted {
		t.Errorf("%+v", got)
	}
}
