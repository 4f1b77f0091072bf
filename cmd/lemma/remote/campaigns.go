package remote

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"lemma/client"
)

// Campaigns are the commands for campaigns.
type Campaigns struct {
	Results campaignsResultsCommand `cmd:"" help:"Show the results of a campaign's A/B test: the rate of each variant with its interval."`
}

type campaignsResultsCommand struct {
	output
	Iteration string        `arg:"" help:"The id of the iteration, which the campaign has as iteration_id."`
	Follow    bool          `help:"Print the results again when they change, until the test has ended."`
	Every     time.Duration `default:"2s" help:"With --follow: time between two requests."`
}

func (r campaignsResultsCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return r.call(cfg, func(c *client.Client) error {
		draw := func(out io.Writer, results client.IterationResults) error {
			return r.print(out, results, func(out io.Writer) error { return drawResults(out, results) })
		}
		ends := func(status string) bool { return !r.Follow || status == "completed" || status == "cancelled" }
		_, err := followResults(ctx, c, r.Iteration, r.Every, out, draw, ends)
		return err
	})
}

// FollowResults draws the results of an iteration when they change, until it has one of
// the statuses.
func FollowResults(ctx context.Context, c *client.Client, iteration string, every time.Duration, out io.Writer,
	until ...string) (client.IterationResults, error) {
	return followResults(ctx, c, iteration, every, out, drawResults, func(status string) bool { return slices.Contains(until, status) })
}

func followResults(ctx context.Context, c *client.Client, iteration string, every time.Duration, out io.Writer,
	draw func(io.Writer, client.IterationResults) error, ends func(status string) bool) (client.IterationResults, error) {
	var last string
	for {
		results, err := c.ReadResults(ctx, iteration)
		if err != nil {
			return results, err
		}
		var text strings.Builder
		if err := draw(&text, results); err != nil {
			return results, err
		}
		if text.String() != last {
			last = text.String()
			fmt.Fprintln(out, last)
		}
		if ends(results.Status) {
			return results, nil
		}
		select {
		case <-ctx.Done():
			return results, ctx.Err()
		case <-time.After(max(every, 100*time.Millisecond)):
		}
	}
}

// drawResults prints the newest numbers of each variant, with a bar for its interval.
func drawResults(out io.Writer, r client.IterationResults) error {
	fmt.Fprintf(out, "%s, cut-off %s\n", r.Status, stampOr(r.CutOffAt, "none"))
	highest := highestRate(r)
	header := "variant\trecipients\tsent\tdelivered\topened\tclicked\tunsubscribed\tcomplained\tconverted\texcluded\trate\tinterval"
	err := Table(out, header, r.Series, func(s client.VariantSeries) []string {
		row := []string{or(s.Variant, "(holdout)")}
		if len(s.Points) == 0 {
			return append(row, slices.Repeat([]string{""}, 11)...)
		}
		p := s.Points[len(s.Points)-1]
		for _, n := range []int64{p.Recipients, p.Sent, p.Delivered, p.Opens, p.Clicks, p.Unsubscribes, p.Complaints} {
			row = append(row, fmt.Sprint(n))
		}
		if p.Converted == nil || p.Rate == nil || p.Interval == nil {
			return append(row, "", "", "", "")
		}
		return append(row, fmt.Sprint(*p.Converted), fmt.Sprint(p.Excluded), fmt.Sprintf("%.2f %%", 100**p.Rate),
			bar(*p.Interval, *p.Rate, highest))
	})
	for _, s := range r.Series {
		if err == nil && s.StoppedReason != nil {
			_, err = fmt.Fprintf(out, "%s is stopped: %s\n", Printable(or(s.Variant, "")), Printable(*s.StoppedReason))
		}
	}
	if err == nil && r.Winner != nil {
		_, err = fmt.Fprintf(out, "winner: %s\n", Printable(*r.Winner))
	}
	if err == nil && r.Sentence != nil {
		_, err = fmt.Fprintln(out, Printable(*r.Sentence))
	}
	return err
}

// highestRate is the upper end of all intervals.
func highestRate(r client.IterationResults) float64 {
	highest := 0.0
	for _, s := range r.Series {
		if n := len(s.Points); n > 0 && s.Points[n-1].Interval != nil {
			highest = max(highest, s.Points[n-1].Interval.High)
		}
	}
	return highest
}

const barWidth = 40

// bar draws an interval, with the rate in it, on a scale from 0 to the highest rate.
func bar(i client.RateInterval, rate, highest float64) string {
	cell := func(x float64) int {
		if highest == 0 {
			return 0
		}
		return min(int(x/highest*barWidth), barWidth-1)
	}
	cells := []rune(strings.Repeat(" ", barWidth))
	for at := cell(i.Low); at <= cell(i.High); at++ {
		cells[at] = '─'
	}
	cells[cell(rate)] = '●'
	return strings.TrimRight(string(cells), " ")
}
