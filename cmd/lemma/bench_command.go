package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/pprof"
	"time"

	"lemma/dev/bench"
	"lemma/dev/sink"
)

// benchCommand runs the benchmarks.
type benchCommand struct {
	Figures []string      `arg:"" optional:"" enum:"campaign_null,campaign_smtp,campaign_ses,campaign_suppressed,campaign_links,fanout,fanout_variants,claim,events_single,events_bulk,flow_advance,flow_execution,webhook_delivery,webhook_out,campaign_events,assign,evaluate,hooks,clicks,direct_single,direct_bulk,export" help:"Names of figures: ${enum}. Default: all."`
	Scale   float64       `default:"1" help:"Factor for all numbers of recipients, such as 0.01 for a quick run."`
	Limit   time.Duration `default:"15m" help:"Maximum duration of the run."`
	Profile string        `type:"path" placeholder:"FILE" help:"Write a CPU profile of this process to a file, for go tool pprof."`
}

func (b *benchCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	if b.Profile != "" {
		f, err := os.OpenFile(b.Profile, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return bench.Run(ctx, bench.Options{Figures: b.Figures, Scale: b.Scale, Server: cfg.server(), PGBin: cfg.PGBin}, out)
}

// sinkCommand runs the servers of the benchmarks in a process of their own, so that
// their CPU time is not counted. It prints their addresses, for mail, Amazon SES and
// webhooks, and the certificate of the second.
type sinkCommand struct{}

func (sinkCommand) run(ctx context.Context, _ Config, out io.Writer) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web, certificate, err := sink.Listen()
	if err != nil {
		return err
	}
	hooks, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.Addr(), web.Addr(), hooks.Addr(), base64.StdEncoding.EncodeToString(certificate))
	return sink.Run(ctx, l, io.Discard, web, hooks)
}

// clientCommand runs the clients of the benchmarks in a process of their own, so that
// their CPU time is not counted.
type clientCommand struct{}

func (clientCommand) run(ctx context.Context, _ Config, out io.Writer) error {
	return bench.RunClient(ctx, os.Stdin, out)
}
