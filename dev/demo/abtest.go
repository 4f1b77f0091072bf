package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"lemma/client"
	"lemma/cmd/lemma/remote"
)

// abDemo sends a campaign with two subjects to a sample of the customers, and the better
// one to the rest. Simulated readers decide.
type abDemo struct {
	campaign campaignDemo
	api      *client.Client
	readers  *readers
	people   int
}

const (
	abName     = "A statement or a question"
	abQuestion = "{{ name | default: \"Hello\" }}, have you seen what is new in {{ city }}?"
	abHTML     = `<!doctype html>
<html><body style="font-family: sans-serif; max-width: 34em; margin: 2em auto">
<h1>Dear {{ name | default: "friend" }},</h1>
<p>the shop in <b>{{ city }}</b> has new opening hours.</p>
<p><a href="https://shop.example/new?customer={{ id }}">Visit us</a></p>
<p><a href="{{ unsubscribe_url }}">Unsubscribe</a></p>
</body></html>`

	abSample   = 5000 // profiles at most, where half of the customers are more
	abDuration = 15 * time.Second

	// abTimeout bounds how long the counts of opens may take after the test.
	abTimeout = time.Minute
)

// ABCounts are the results of a run: the last line of `lemma dev --demo abtest --once`.
type ABCounts struct {
	Status   string  `json:"status"` // of the test
	Winner   *string `json:"winner"`
	Sentence *string `json:"sentence"`
	Audience int64   `json:"audience"`
	Sent     int64   `json:"sent"`
	Opened   int     `json:"opened"`        // messages, by the readers of this run
	Opens    int64   `json:"unique_opens"`  // as Lemma counted
	Clicked  int     `json:"clicked"`       // links, by the readers of this run
	Clicks   int64   `json:"unique_clicks"` // as Lemma counted
	Machine  int64   `json:"machine_clicks"`
	Unsure   int     `json:"unsure"` // opened or clicked, and Lemma may not have stored it
}

// runAB runs the A/B demo and prints its results.
func runAB(ctx context.Context, e *environment, o Options, out io.Writer) error {
	api, err := client.New("http://"+e.listen, e.key, client.UserAgent("lemma-dev"))
	if err != nil {
		return err
	}
	d := &abDemo{campaign: campaignDemo{api: e.rest(), out: out, quiet: true}, api: api, readers: newReaders(e.catcher), people: o.People}
	counts, id, err := d.run(ctx, e)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C: the next run continues
	}
	if o.Once {
		return errors.Join(json.NewEncoder(out).Encode(counts), err)
	}
	if err != nil {
		fmt.Fprintln(out, "\n ", err)
	}
	fmt.Fprintf(out, `
  API            http://%[1]s/v1
  mail catcher   %[2]s

  LEMMA_URL=http://%[1]s LEMMA_API_KEY_FILE=%[3]s bin/lemma campaigns results %[4]s

Ctrl-C stops everything. The next run sends no message again.
`, e.listen, e.catcher.URL(), filepath.Join(e.dir, "key"), id)
	<-ctx.Done()
	return nil
}

// run sends the campaign unless an earlier run did, and follows its test. id is that of
// the iteration.
func (d *abDemo) run(ctx context.Context, e *environment) (counts ABCounts, id string, err error) {
	campaign, err := d.prepare(ctx, e)
	if err != nil {
		return counts, "", err
	}
	before := e.catcher.Stats().Messages
	fresh := campaign.Status == "draft"
	if fresh {
		fmt.Fprintf(d.campaign.out, "An A/B test of two subjects. The sample has %v %% of the customers, and the test takes %v.\n\n",
			d.samplePercent(), abDuration)
		if err := d.campaign.api.call(ctx, http.MethodPost, "/campaigns/"+campaign.ID+"/send", "", nil, nil); err != nil {
			return counts, "", err
		}
	}
	reading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); d.readers.read(reading, before) }()
	results, err := remote.FollowResults(ctx, d.api, campaign.Iteration, time.Second, d.campaign.out, "completed", "cancelled", "inconclusive")
	stop()
	<-ended
	if err != nil {
		return counts, campaign.Iteration, err
	}
	counts, err = d.results(ctx, campaign.ID, results, fresh)
	return counts, campaign.Iteration, err
}

// samplePercent is the sample of the test: half of the customers, or about abSample.
func (d *abDemo) samplePercent() float64 {
	return min(50, max(1, float64(100*abSample/max(d.people, 1))))
}

// prepare creates the campaign, or finds that of an earlier run.
func (d *abDemo) prepare(ctx context.Context, e *environment) (campaignView, error) {
	m, err := d.campaign.materials(ctx, e.shop.DSN, e.smtpPort())
	if err != nil {
		return campaignView{}, err
	}
	tpl, err := d.campaign.api.ensure(ctx, "/templates", abName, map[string]any{"subject": "What is new in {{ city }}", "html": abHTML,
		"text": campaignText})
	if err != nil {
		return campaignView{}, err
	}
	c, err := d.campaign.api.ensure(ctx, "/campaigns", abName, map[string]any{"audience_id": m.audience, "template_id": tpl.ID,
		"provider_id": m.provider, "from": map[string]any{"name": "Demo shop", "email": "news@shop.example"},
		"experiment": map[string]any{
			"variants": []map[string]any{
				{"name": "statement", "weight": 50},
				{"name": "question", "weight": 50, "subject": abQuestion},
			},
			"sample_percent": d.samplePercent(), "holdout_percent": 5, "metric": map[string]any{"type": "unique_opens"},
			"duration": fmt.Sprintf("PT%dS", int(abDuration.Seconds())), "on_inconclusive": "best"}})
	if err != nil {
		return campaignView{}, err
	}
	return d.campaign.get(ctx, c.ID)
}

// results waits until Lemma has counted what the readers did, and finds what is wrong.
// The campaign of an earlier run was read by the readers of that run.
func (d *abDemo) results(ctx context.Context, campaign string, r client.IterationResults, fresh bool) (counts ABCounts, err error) {
	counts = ABCounts{Status: r.Status, Winner: r.Winner, Sentence: r.Sentence}
	failed := d.readers.count(&counts)
	for begun := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		c, err := d.campaign.get(ctx, campaign)
		if err != nil {
			return counts, err
		}
		n, e := c.Counts, c.Counts.Engagement
		counts.Audience, counts.Sent = n.Total, n.Sent
		counts.Opens, counts.Clicks, counts.Machine = e.UniqueOpens, e.UniqueClicks, e.MachineClicks
		if !fresh || counts.agree(0) || time.Since(begun) > abTimeout {
			counts.print(d.campaign.out)
			return counts, errors.Join(failed, counts.check(n.Balanced, fresh))
		}
	}
}

// agree reports whether Lemma counted what the readers did, but for unsure of it, and for
// clicks that it took for those of machines.
func (n ABCounts) agree(unsure int) bool {
	opens, clicks := int64(n.Opened)-n.Opens, int64(n.Clicked)-n.Clicks
	return opens >= 0 && clicks >= 0 && opens+max(0, clicks-n.Machine) <= int64(unsure)
}

func (n ABCounts) print(out io.Writer) {
	fmt.Fprintf(out, "Readers opened %d messages and clicked %d links. Lemma counted %d unique opens and %d unique clicks.\n",
		n.Opened, n.Clicked, n.Opens, n.Clicks)
	if n.Machine > 0 {
		fmt.Fprintf(out, "It took %d clicks for those of machines, since they followed too soon after the message was recorded as sent.\n",
			n.Machine)
	}
	if n.Unsure > 0 {
		fmt.Fprintf(out, "%d opens and clicks may not be stored: the answers took %v, although the readers repeated them %d times.\n",
			n.Unsure, lateAfter, tries)
	}
}

// check returns an error unless a winner was rolled out and all opens and clicks of this
// run were counted that Lemma stored.
func (n ABCounts) check(balanced, fresh bool) error {
	switch {
	case n.Status != "completed" || n.Winner == nil:
		return fmt.Errorf("the A/B test is %s", n.Status)
	case !balanced:
		return errors.New("the counts of the campaign are not balanced")
	case fresh && !n.agree(n.Unsure):
		return fmt.Errorf("%d messages were opened and %d clicked (%d may not be stored), and Lemma counted %d and %d (and %d of machines)",
			n.Opened, n.Clicked, n.Unsure, n.Opens, n.Clicks, n.Machine)
	}
	return nil
}
