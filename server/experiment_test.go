package server

import (
	"fmt"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/campaigns"
	"lemma/dev/catcher"
	"lemma/message"
	"lemma/pgtest"
)

// tested is a campaign whose sample of n profiles has been sent, and the mails of its
// variants. B has a template of its own.
type tested struct {
	*mailing
	campaign, second uuid.UUID
	mails            map[string][]*mail.Message
}

func startTested(t *testing.T, n int, change func(*campaigns.Experiment)) *tested {
	t.Helper()
	m := &tested{mailing: startMailing(t), mails: map[string][]*mail.Message{}}
	m.ExecDB(`insert into people select i, 'p' || i || '@shop.example', 'Ada' from generate_series(3, $1::int) i`, n)
	m.ExecDB(`alter table people add column points int default 1`)
	m.Audience = m.NewAudience(m.Source, `select * from people`)
	m.second = m.NewTemplate(message.Content{Subject: "B for {{ 5 | divided_by: points }}", HTML: `<a href="{{ unsubscribe_url }}">off</a>`})
	e := &campaigns.Experiment{SamplePercent: 50, Metric: &campaigns.Metric{Event: "bought"}, Duration: time.Hour,
		Variants: []campaigns.Variant{{Name: "A", Weight: 50}, {Name: "B", Weight: 50, TemplateID: &m.second}}}
	change(e)
	m.campaign = m.mailing.campaign(func(c *campaigns.NewCampaign) { c.Experiment = e })
	for _, one := range m.work(m.campaign) {
		name := "A"
		if strings.HasPrefix(one.Header.Get("Subject"), "B") {
			name = "B"
		}
		m.mails[name] = append(m.mails[name], one)
	}
	return m
}

func (m *tested) get() campaigns.Campaign {
	m.T.Helper()
	c, err := m.Campaigns.Get(m.T.Context(), m.Workspace, m.campaign)
	m.Must(err)
	return c
}

func (m *tested) iteration() campaigns.Iteration {
	m.T.Helper()
	it, err := m.Campaigns.GetIteration(m.T.Context(), m.Workspace, *m.get().IterationID)
	m.Must(err)
	return it
}

// rollOut records B as the winner, and writes and sends the rollout.
func (m *tested) rollOut() map[string]*mail.Message {
	m.T.Helper()
	_, err := m.Campaigns.SelectWinner(m.T.Context(), m.Workspace, m.iteration().ID, "B", uuid.Nil)
	m.Must(err)
	_, err = m.Campaigns.Fanout(m.T.Context(), m.Workspace, m.campaign)
	m.Must(err)
	return m.work(m.campaign)
}

// Recipients of one variant unsubscribe by one click. The guardrail stops the variant, and
// a person cannot choose it.
func TestOneClicksStopAVariant(t *testing.T) {
	m := startTested(t, 120, func(e *campaigns.Experiment) {
		e.SamplePercent, e.Guardrail = 100, &campaigns.Guardrail{Metric: campaigns.Unsubscribes, Limit: 0.01}
	})
	check := func() campaigns.Iteration {
		_, err := m.Tracking.Apply(t.Context(), 0)
		m.Must(err)
		m.Exec(`update iterations set guardrail_at = now()`)
		_, err = m.Campaigns.CheckGuardrails(t.Context())
		m.Must(err)
		return m.iteration()
	}
	m.clickAll(m.mails["A"][:1])
	m.clickAll(m.mails["B"][:1])
	if it := check(); it.Variants[0].StoppedAt != nil || it.Variants[1].StoppedAt != nil {
		t.Fatalf("one of %d unsubscribed: %+v", len(m.mails["B"]), it.Variants)
	}
	m.clickAll(m.mails["B"][:8]) // the first one again
	it := check()
	reason := fmt.Sprintf("8 unsubscribes of %d sent", len(m.mails["B"]))
	if it.Variants[0].StoppedAt != nil || it.Variants[1].StoppedAt == nil || !strings.HasPrefix(it.Variants[1].StoppedReason, reason) {
		t.Errorf("want %s: %+v", reason, it.Variants)
	}
	if _, err := m.Campaigns.SelectWinner(t.Context(), m.Workspace, it.ID, "B", uuid.Nil); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("B is chosen: %v", err)
	}
}

func (m *tested) clickAll(mails []*mail.Message) {
	m.T.Helper()
	for _, one := range mails {
		if code := m.click(one); code != 200 {
			m.T.Fatalf("one click: %d", code)
		}
	}
}

// A template gets a version that the audience cannot fill, between sample and rollout. The
// rollout sends the version of the sample, and the template cannot be deleted.
func TestATemplateThatChangesBeforeTheRollout(t *testing.T) {
	m := startTested(t, 80, func(*campaigns.Experiment) {})
	_, err := m.Server.Templates.AddVersion(t.Context(), m.Workspace, m.second, nil,
		message.Content{Subject: "C for {{ unknown }}", HTML: `<a href="{{ unsubscribe_url }}">off</a>`}, uuid.Nil)
	m.Must(err)
	if err := m.Server.Templates.Delete(t.Context(), m.Workspace, m.second); lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("deleted: %v", err)
	}
	rest := m.rollOut()
	if want := 80 - len(m.mails["A"]) - len(m.mails["B"]); len(rest) != want || want == 0 {
		t.Errorf("%d messages, want %d", len(rest), want)
	}
	for to, one := range rest {
		if got := one.Header.Get("Subject"); got != "B for 5" {
			t.Errorf("%s got %q", to, got)
		}
	}
}

// Half of the rows cannot be rendered any more: the campaign is paused, and the iteration
// keeps its winner.
func TestATemplateThatFailsInTheRollout(t *testing.T) {
	m := startTested(t, 200, func(*campaigns.Experiment) {})
	m.ExecDB(`update people set points = 0 where id::int % 2 = 0`)
	rest := m.rollOut()
	if got := m.get(); got.Status != campaigns.Paused || got.StatusReason != "template_errors" {
		t.Fatalf("%s %s after %d messages", got.Status, got.StatusReason, len(rest))
	}
	if it := m.iteration(); it.Status != campaigns.IterationRollingOut || *it.Winner != 1 {
		t.Errorf("%s %v", it.Status, it.Winner)
	}
}

// The provider refuses the sender after the sample: the rollout pauses the campaign, and
// no message fails. After a resume all others get the winner.
func TestAProviderThatBreaksBeforeTheRollout(t *testing.T) {
	m := startTested(t, 80, func(*campaigns.Experiment) {})
	m.catcher.SetFaults(catcher.Script(catcher.Rule{At: catcher.Mail, Fault: catcher.Refuse("550 5.7.1 not you")}))
	if err := m.Server.Providers.Delete(t.Context(), m.Workspace, m.Provider); lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("deleted: %v", err)
	}
	if got := m.rollOut(); len(got) != 0 {
		t.Errorf("%d messages", len(got))
	}
	now := m.get()
	if now.Status != campaigns.Paused || now.StatusReason != "provider_refused" || m.iteration().Status != campaigns.IterationRollingOut {
		t.Fatalf("%s %s, %s", now.Status, now.StatusReason, m.iteration().Status)
	}
	m.catcher.SetFaults(nil)
	_, err := m.Campaigns.Resume(t.Context(), m.Workspace, m.campaign, uuid.Nil)
	m.Must(err)
	pgtest.Eventually(t, 30*time.Second, "the campaign completes", func() bool { // its circuit is probed
		m.work(m.campaign)
		m.Must(m.Campaigns.Tick(t.Context()))
		return m.get().Status == campaigns.Completed
	})
	if got := m.get(); got.Counts.Sent != 80 || !got.Counts.Balanced || m.iteration().Status != campaigns.IterationCompleted {
		t.Errorf("%s %+v", m.iteration().Status, got.Counts)
	}
}
