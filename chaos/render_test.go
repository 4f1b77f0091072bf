package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/campaigns"
	"lemma/message"
)

// Of 1,732 profiles 809 have no name, which the subject needs. Two workers pause
// the campaign early with the reason. A resume continues until it is paused again, and
// one that allows all errors completes it. No profile gets two messages, and those that
// failed stay skipped.
func TestMessagesThatCannotBeRenderedPauseACampaign(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customerOf(`insert into people select i, 'p' || i || '@shop.example',
		case when i % 2 = 1 or i > 1618 then 'Name ' || i else '' end, false from generate_series(1, 1732) i`)
	tpl, err := message.New(h.Pool).Create(t.Context(), h.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: "strict",
		Content: message.Content{Subject: "{{ name }}", Text: "Hello"}})
	h.Must(err)
	h.Template = tpl.ID
	h.mail.slow(2 * time.Millisecond)
	h.startWorkers(2)
	id := h.send(people)

	paused := func() campaigns.Campaign {
		t.Helper()
		h.eventually("the campaign is paused", func() bool { return h.campaign(id).Status == campaigns.Paused })
		h.eventually("all calls have ended", func() bool { return h.campaign(id).Counts.Processing == 0 })
		return h.campaign(id)
	}
	first := paused()
	if first.StatusReason != "template_errors" || !strings.Contains(first.StatusDetail, "the rendered subject is empty") ||
		first.Counts.Skipped < 10 || first.Counts.Pending < 500 || !first.Counts.Balanced {
		t.Fatalf("%s: %s, %+v", first.StatusReason, first.StatusDetail, first.Counts)
	}
	_, err = h.campaigns.Resume(t.Context(), h.Workspace, id, uuid.Nil)
	h.Must(err)
	second := paused()
	if second.StatusReason != "template_errors" || second.Counts.Skipped < first.Counts.Skipped+10 {
		t.Fatalf("%s: %s, %+v after %+v", second.StatusReason, second.StatusDetail, second.Counts, first.Counts)
	}
	all := 1.0
	_, err = h.campaigns.ResumeWith(t.Context(), h.Workspace, id, uuid.Nil, &all)
	h.Must(err)
	h.completed(id)
	if end := h.campaign(id).Counts; end.Sent != 1732-809 || end.SkippedBy["template_error"] != 809 || !end.Balanced {
		t.Errorf("%+v", end)
	}
	if n := h.mail.received(); n != 1732-809 {
		t.Errorf("%d messages are sent", n)
	}
}
