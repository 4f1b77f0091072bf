// Package demo runs a whole Lemma on one machine, with a demo shop and a mail
// catcher. It sends a campaign and runs a flow, or runs an A/B test with simulated
// readers, and checks that every count is right. It calls Lemma over HTTP only, as any other client does.
//
// A second run finds what the first one created, and sends no message again.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	"lemma/client"
	"lemma/server"
)

// Options are the options of a run.
type Options struct {
	Once    bool          // stop after the demo and print the counts as JSON; otherwise run until ctx ends
	ABTest  bool          // run an A/B test instead of the campaign and the flow
	Home    string        // folder of the database, the caught mail and the keys
	People  int           // customers of the demo shop
	SMTP    string        // address of the mail catcher for SMTP; another free port if it is in use
	Catcher string        // the same for HTTP
	Server  server.Config // with DatabaseURL: that Postgres is used instead of one in Home
	PGBin   string        // folder of initdb and postgres
	Logger  func(io.Writer) *slog.Logger
}

// Run runs the demo and prints its progress and results to out. With Once, an
// error is returned when a count is wrong.
func Run(ctx context.Context, o Options, out io.Writer) (err error) {
	e, err := start(ctx, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if o.ABTest {
		return runAB(ctx, e, o, out)
	}
	d := &campaignDemo{api: e.rest(), out: out, quiet: !isTerminal(out)}
	c, err := d.send(ctx, e.shop.DSN, e.smtpPort())
	if err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C while it was sending: the next run continues
		}
		return err
	}
	counts := countsOf(c, int64(e.catcher.Stats().Duplicates))
	counts.print(out)
	wrong := counts.check(c)
	f, err := runFlow(ctx, e, o.People, d.api, out)
	if ctx.Err() != nil {
		return nil
	}
	wrong = errors.Join(wrong, err, f.err())
	if o.Once {
		counts.Flow = &f
		return errors.Join(counts.json(out), wrong)
	}
	if wrong != nil {
		fmt.Fprintln(out, "\n ", wrong)
	}
	e.printAddresses(out, c)
	<-ctx.Done()
	fmt.Fprintln(out, "\nStopping.")
	return nil
}

func (e *environment) rest() *httpClient {
	return &httpClient{base: "http://" + e.listen + "/v1", key: e.key}
}

// runFlow runs the demo flow for customers of the shop.
func runFlow(ctx context.Context, e *environment, people int, rest *httpClient, out io.Writer) (FlowCounts, error) {
	api, err := client.New("http://"+e.listen, e.key, client.UserAgent("lemma-dev"))
	if err != nil {
		return FlowCounts{}, err
	}
	d := &flowDemo{rest: rest, api: api, out: out, shop: e.shop, catcher: e.catcher, people: people}
	counts, err := d.run(ctx)
	if err != nil {
		return counts, err
	}
	return counts, counts.print(out)
}

func (e *environment) printAddresses(out io.Writer, c campaignView) {
	fmt.Fprintf(out, `
  API            http://%[1]s/v1
  API docs       http://%[1]s/docs
  mail catcher   %[2]s
  metrics        %[7]s
  key            %[3]s

  curl -H "Authorization: Bearer %[3]s" http://%[1]s/v1/campaigns/%[4]s
  LEMMA_URL=http://%[1]s LEMMA_API_KEY_FILE=%[6]s bin/lemma flows counts '%[5]s'

Ctrl-C stops everything. The next run starts faster, and sends no message again.
`, e.listen, e.catcher.URL(), e.key, c.ID, flowName, filepath.Join(e.dir, "key"), e.metricsURL())
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "127.0.0.1"
	}
	return host
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func sortedKeys(m map[string]int64) []string { return slices.Sorted(maps.Keys(m)) }
