package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alecthomas/kong"

	"lemma/cmd/lemma/remote"
)

// commands is the command line. Every command has the settings as flags.
type commands struct {
	Config  `embed:""`
	EnvFile envFile `name:"env-file" group:"Settings" placeholder:"FILE" help:"A file of settings, in lines of NAME=value. Flags and environment variables take precedence."`

	Dev           devCommand              `cmd:"" help:"Run everything on this machine, with a demo shop and a mail catcher: send a campaign and run a flow, or run an A/B test."`
	Serve         serveCommand            `cmd:"" help:"Serve the HTTP API."`
	Work          workCommand             `cmd:"" help:"Run the workers: read audiences, move enrollments, send messages, deliver webhooks."`
	Migrate       migrateCommand          `cmd:"" help:"Migrate the database, or list the migrations."`
	Keys          keysCommand             `cmd:"" help:"Create, list and revoke API keys."`
	Archives      archiveCommand          `cmd:"" name:"archive" help:"List and read partitions that were archived before they were dropped."`
	Hosts         hostsCommand            `cmd:"" help:"List and release the hosts of the links of workspaces."`
	Settings      settingsCommand         `cmd:"" help:"List and remove the values that processes have of the settings that concern all of them."`
	Secrets       secretsCommand          `cmd:"" help:"Change the key that encrypts stored secrets."`
	Flows         remote.Flows            `cmd:"" help:"Create, publish, watch and stop flows, over the API."`
	Events        remote.Events           `cmd:"" help:"Record and list events, over the API."`
	Notifications remote.Notifications    `cmd:"" help:"List notifications; send, show and cancel direct ones, over the API."`
	Iterations    remote.Iterations       `cmd:"" help:"List A/B tests, over the API."`
	Campaigns     remote.Campaigns        `cmd:"" help:"Follow A/B tests, over the API."`
	Providers     remote.Providers        `cmd:"" help:"Test providers, over the API."`
	Enrollments   remote.Enrollments      `cmd:"" help:"List, create, move and end enrollments, over the API."`
	Exports       remote.Exports          `cmd:"" help:"Create, follow and download exports, over the API."`
	Webhooks      remote.WebhookEndpoints `cmd:"" name:"webhook-endpoints" help:"Create, change, watch and test webhook endpoints, over the API."`
	Workspace     remote.Workspace        `cmd:"" help:"Show and change the workspace of the API key, over the API."`
	Abtest        abtestCommand           `cmd:"" help:"Recompute the assignments of A/B tests."`
	Doctor        doctorCommand           `cmd:"" help:"Check the constraints and settings that the guarantees depend on, the stored secrets, and the data sources."`
	Bench         benchCommand            `cmd:"" help:"Run the benchmarks, on a Postgres of their own; print one JSON line per figure."`
	Sink          sinkCommand             `cmd:"" hidden:"" help:"Run the mail server of the benchmarks."`
	Client        clientCommand           `cmd:"" hidden:"" help:"Run the clients of the benchmarks."`
	Show          showCommand             `cmd:"" name:"config" help:"Print the settings in effect, without secrets."`
}

// command is a subcommand of this package; the others are a remote.Command.
type command interface {
	run(ctx context.Context, cfg Config, out io.Writer) error
}

// Run runs one command line until it is done or ctx ends. env reads the
// environment. The command prints to out.
func Run(ctx context.Context, args []string, env environment, out io.Writer) error {
	var c commands
	parsed, err := parse(&c, args, env, out)
	if parsed == nil || err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	switch selected := parsed.Selected().Target.Addr().Interface().(type) {
	case command:
		return selected.run(ctx, c.Config, out)
	case remote.Command:
		return remote.Run(ctx, selected, remote.Config{URL: c.URL, APIKey: c.APIKey}, out)
	}
	return fmt.Errorf("%s needs a subcommand", parsed.Command())
}

// parse fills c, which embeds a Config. It returns nil after printing help.
func parse(c any, args []string, env environment, out io.Writer) (*kong.Context, error) {
	helpPrinted := false
	s := &variables{env: env}
	parser, err := kong.New(c, kong.Name("lemma"), kong.Description("A campaign and flow engine that proves how often it sends."),
		kong.Writers(out, out), kong.Exit(func(int) { helpPrinted = true }), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(helpWithVariable), kong.Bind(s), kong.Resolvers(s))
	if err != nil {
		return nil, fmt.Errorf("describe the command line: %w", err)
	}
	if len(args) == 0 && len(parser.Model.Children) > 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if helpPrinted {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parsed, s.fillSecrets(c)
}
