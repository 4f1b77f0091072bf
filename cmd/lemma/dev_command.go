package main

import (
	"context"
	"io"

	"lemma/dev/demo"
)

// devCommand runs the demo.
type devCommand struct {
	Once    bool   `help:"Stop after the demo, and print a line of JSON; fail if the counts are wrong."`
	Demo    string `default:"campaign" enum:"campaign,abtest" help:"What to run: campaign (a campaign and a flow) or abtest (an A/B test with simulated readers)."`
	Home    string `default:".lemma" type:"path" help:"Folder of the database, the caught mail and the keys."`
	People  int    `default:"50000" help:"Number of customers of the demo shop."`
	SMTP    string `default:"127.0.0.1:1025" help:"SMTP address of the mail catcher."`
	Catcher string `default:"127.0.0.1:8025" help:"HTTP address of the mail catcher."`
}

func (d *devCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return demo.Run(ctx, demo.Options{Once: d.Once, ABTest: d.Demo == "abtest", Home: d.Home, People: d.People, SMTP: d.SMTP,
		Catcher: d.Catcher, Server: cfg.server(), PGBin: cfg.PGBin, Logger: cfg.logger}, out)
}
