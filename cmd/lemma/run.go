package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// commands is the command line. Settings are flags of every command.
type commands struct {
	Config  `embed:""`
	EnvFile envFile `name:"env-file" group:"Settings" placeholder:"FILE" help:"Read settings from a file of NAME=value lines; flags and the environment win."`

	Dev         devCommand         `cmd:"" help:"Run everything on this machine, with a demo shop and a mail catcher: send a campaign, and walk people through a flow."`
	Serve       serveCommand       `cmd:"" help:"Answer the HTTP API."`
	Work        workCommand        `cmd:"" help:"Send: write notifications, call carriers, reap, sweep."`
	Migrate     migrateCommand     `cmd:"" help:"Bring the database to the newest schema, or show where it is."`
	Keys        keysCommand        `cmd:"" help:"Make, list and revoke API keys."`
	Secrets     secretsCommand     `cmd:"" help:"Rotate the key that seals secrets at rest."`
	Flows       flowsCommand       `cmd:"" help:"Make, publish, watch and stop flows."`
	Events      eventsCommand      `cmd:"" help:"Tell what people did, and read it."`
	Enrollments enrollmentsCommand `cmd:"" help:"See, make, move and end enrollments."`
	Doctor      doctorCommand      `cmd:"" help:"Check every constraint and setting that a promise rests on, and that every secret opens."`
	Bench       benchCommand       `cmd:"" help:"Measure the hot paths; one JSON line per figure."`
	Sink        sinkCommand        `cmd:"" hidden:"" help:"The mail server that bench sends to."`
	Show        showCommand        `cmd:"" name:"config" help:"Print the settings as Lemma understands them, without secrets."`
}

// command is what every subcommand is.
type command interface {
	run(ctx context.Context, cfg Config, out io.Writer) error
}

// Run performs one command line until it is done or ctx ends. env is the
// environment, as os.Getenv has it; what the command has to say goes to out.
func Run(ctx context.Context, args []string, env func(string) string, out io.Writer) error {
	var c commands
	parsed, err := parse(&c, args, env, out)
	if parsed == nil || err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	chosen, ok := parsed.Selected().Target.Addr().Interface().(command)
	if !ok {
		return fmt.Errorf("%s needs a subcommand", parsed.Command())
	}
	return chosen.run(ctx, c.Config, out)
}

// parse fills c, which embeds a Config. It answers nil when somebody asked for
// help, which has been printed then.
func parse(c any, args []string, env func(string) string, out io.Writer) (*kong.Context, error) {
	helped := false
	s := &settings{env: env}
	parser, err := kong.New(c, kong.Name("lemma"), kong.Description("A campaign engine that proves how often it sends."),
		kong.Writers(out, out), kong.Exit(func(int) { helped = true }), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(helpWithVariable), kong.Bind(s), kong.Resolvers(s))
	if err != nil {
		return nil, fmt.Errorf("describe the command line: %w", err)
	}
	if len(args) == 0 && len(parser.Model.Children) > 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if helped {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parsed, s.fillSecrets(c)
}
