package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/campaigns"
	"lemma/secrets"
	"lemma/sender"
)

// Config is every setting of the program. A setting comes from its flag, else
// from the environment variable in its var tag, else from the file of
// --env-file, else it is the default. A secret X may instead be in a file that
// X_FILE names. docs/configuration.md is the list.
type Config struct {
	DatabaseURL string `name:"database-url" var:"DATABASE_URL" secret:"" group:"Settings" placeholder:"URL" help:"The Postgres that Lemma keeps its tables in."`
	SecretKey   string `kong:"-" var:"LEMMA_SECRET_KEY" secret:""` // no flag: those are for everybody on the machine to see

	Listen         string `var:"LEMMA_LISTEN" group:"Settings" default:"127.0.0.1:8080" help:"Where the API listens."`
	MetricsListen  string `var:"LEMMA_METRICS_LISTEN" group:"Settings" default:"127.0.0.1:9464" help:"Where a server answers /metrics: on the API's own address if it is the same, nowhere when empty."`
	MaxConnections int    `var:"LEMMA_MAX_CONNECTIONS" group:"Settings" default:"1000" help:"Connections that the API takes at a time; others are answered with 503."`
	WorkListen     string `var:"LEMMA_WORK_LISTEN" group:"Settings" placeholder:"ADDRESS" help:"Where a worker answers /healthz, /readyz and /metrics; nowhere when empty."`

	Lease            time.Duration `var:"LEMMA_LEASE" group:"Settings" default:"5m" help:"How long a claim may act."`
	CallTimeout      time.Duration `var:"LEMMA_CALL_TIMEOUT" group:"Settings" default:"30s" help:"The longest that one call to a carrier may last; well under the lease."`
	ReapEvery        time.Duration `var:"LEMMA_REAP_EVERY" group:"Settings" default:"1m" help:"How often expired leases are looked for."`
	SweepEvery       time.Duration `var:"LEMMA_SWEEP_EVERY" group:"Settings" default:"30s" help:"How often due batches without a job are looked for."`
	SendWorkers      int           `var:"LEMMA_SEND_WORKERS" group:"Settings" default:"16" help:"Batches sent at a time by this process."`
	SendPerProvider  int           `var:"LEMMA_SEND_PER_PROVIDER" group:"Settings" default:"0" help:"Of these, what one provider may hold; 0: three quarters."`
	SendPerWorkspace int           `var:"LEMMA_SEND_PER_WORKSPACE" group:"Settings" default:"0" help:"Of these, what one workspace may hold; 0: three quarters."`
	FanoutWorkers    int           `var:"LEMMA_FANOUT_WORKERS" group:"Settings" default:"16" help:"Audiences read at a time by this process."`
	ProviderOutage   time.Duration `var:"LEMMA_PROVIDER_OUTAGE" group:"Settings" default:"15m" help:"How long a provider may fail before what uses it is paused."`
	MaxWindow        int           `var:"LEMMA_MAX_WINDOW" group:"Settings" default:"500" help:"Notifications that a crash can leave in doubt, at most, per batch in work."`

	FanoutsPerWorkspace int `var:"LEMMA_FANOUTS_PER_WORKSPACE" group:"Settings" default:"4" help:"Audiences of one workspace read at a time, by all processes together."`
	FanoutsPerSource    int `var:"LEMMA_FANOUTS_PER_SOURCE" group:"Settings" default:"2" help:"Audiences of one data source read at a time, by all processes together."`

	RecheckAfter time.Duration `var:"LEMMA_RECHECK_AFTER" group:"Settings" default:"1h" help:"Recipients that have waited longer are read again from their audience before they are called."`

	TemplateErrorLimit float64 `var:"LEMMA_TEMPLATE_ERROR_LIMIT" group:"Settings" default:"0.02" help:"The share of messages that may fail to render before a campaign is paused; 1 never pauses."`

	FlowWorkers    int           `var:"LEMMA_FLOW_WORKERS" group:"Settings" default:"4" help:"Lots of enrollments advanced at a time by this process."`
	EventRetention time.Duration `var:"LEMMA_EVENT_RETENTION" group:"Settings" default:"720h" help:"How long events and refusals of triggers are kept."`

	SourceTimeout         time.Duration `var:"LEMMA_SOURCE_TIMEOUT" group:"Settings" default:"60s" help:"How long a data source may be silent while it is read."`
	AllowPrivateSources   bool          `var:"LEMMA_ALLOW_PRIVATE_SOURCES" group:"Settings" help:"Let data sources be on loopback and private addresses."`
	AllowPrivateProviders bool          `var:"LEMMA_ALLOW_PRIVATE_PROVIDERS" group:"Settings" help:"Let mail servers be on loopback and private addresses."`
	AllowPrivateWebhooks  bool          `var:"LEMMA_ALLOW_PRIVATE_WEBHOOKS" group:"Settings" help:"Let webhooks be on loopback and private addresses, and without TLS."`
	AllowWritingSources   bool          `var:"LEMMA_ALLOW_WRITING_SOURCES" group:"Settings" help:"Accept data sources whose role can write, with a warning."`

	URL    string `var:"LEMMA_URL" group:"Settings" default:"http://127.0.0.1:8080" help:"The Lemma that flows, events and enrollments are asked of."`
	APIKey string `kong:"-" var:"LEMMA_API_KEY" secret:""` // for that Lemma

	LogLevel  string `var:"LEMMA_LOG_LEVEL" group:"Settings" default:"info" enum:"debug,info,warn,error" help:"The least severe messages to log: ${enum}."`
	LogFormat string `var:"LEMMA_LOG_FORMAT" group:"Settings" default:"text" enum:"text,json" help:"How log lines are written: ${enum}."`

	PGBin string `name:"pg-bin" var:"LEMMA_PG_BIN" group:"Settings" placeholder:"DIR" help:"Folder of initdb and postgres, for the Postgres that dev starts."`
}

// defaultConfig is what a process without any environment would run with.
func defaultConfig() Config {
	var c struct{ Config }
	if _, err := parse(&c, nil, func(string) string { return "" }, io.Discard); err != nil {
		panic(err) // the tags above are wrong
	}
	return c.Config
}

// check refuses settings that cannot work, all at once and before anything is
// started. It tells no secret.
func (c Config) check() error {
	var faults []error
	for name, d := range map[string]time.Duration{
		"LEMMA_LEASE": c.Lease, "LEMMA_CALL_TIMEOUT": c.CallTimeout, "LEMMA_REAP_EVERY": c.ReapEvery, "LEMMA_SWEEP_EVERY": c.SweepEvery, "LEMMA_PROVIDER_OUTAGE": c.ProviderOutage,
		"LEMMA_SOURCE_TIMEOUT": c.SourceTimeout, "LEMMA_RECHECK_AFTER": c.RecheckAfter, "LEMMA_EVENT_RETENTION": c.EventRetention,
	} {
		if d <= 0 {
			faults = append(faults, fmt.Errorf("%s is %v, and must be more than nothing", name, d))
		}
	}
	for name, n := range map[string]int{
		"LEMMA_SEND_WORKERS": c.SendWorkers, "LEMMA_FANOUT_WORKERS": c.FanoutWorkers, "LEMMA_FANOUTS_PER_WORKSPACE": c.FanoutsPerWorkspace, "LEMMA_FANOUTS_PER_SOURCE": c.FanoutsPerSource,
		"LEMMA_FLOW_WORKERS": c.FlowWorkers, "LEMMA_MAX_WINDOW": c.MaxWindow,
		"LEMMA_MAX_CONNECTIONS": c.MaxConnections,
	} {
		if n < 1 || n > 10_000 {
			faults = append(faults, fmt.Errorf("%s is %d, and must be from 1 to 10000", name, n))
		}
	}
	for name, n := range map[string]int{"LEMMA_SEND_PER_PROVIDER": c.SendPerProvider, "LEMMA_SEND_PER_WORKSPACE": c.SendPerWorkspace} {
		if n < 0 || n > c.SendWorkers {
			faults = append(faults, fmt.Errorf("%s is %d, and must be from 0 to LEMMA_SEND_WORKERS (%d)", name, n, c.SendWorkers))
		}
	}
	if c.TemplateErrorLimit <= 0 || c.TemplateErrorLimit > 1 {
		faults = append(faults, fmt.Errorf("LEMMA_TEMPLATE_ERROR_LIMIT is %v, and must be more than 0 and at most 1", c.TemplateErrorLimit))
	}
	for name, address := range map[string]string{"LEMMA_LISTEN": c.Listen, "LEMMA_WORK_LISTEN": c.WorkListen, "LEMMA_METRICS_LISTEN": c.MetricsListen} {
		if _, _, err := net.SplitHostPort(address); err != nil && address != "" {
			faults = append(faults, fmt.Errorf("%s is no address with a port, such as 127.0.0.1:8080: %w", name, err))
		}
	}
	return errors.Join(append(faults, c.checkSecrets(), c.sender().Check())...)
}

func (c Config) checkSecrets() error {
	if _, err := pgx.ParseConfig(c.DatabaseURL); err != nil {
		return errUnreadableURL // the cause would show the password
	}
	if c.SecretKey != "" {
		if _, err := c.box(); err != nil {
			return fmt.Errorf("LEMMA_SECRET_KEY: %w", err)
		}
	}
	return nil
}

// sender are the settings of the sending room.
func (c Config) sender() sender.Config {
	return sender.Config{Lease: c.Lease, CallTimeout: c.CallTimeout, MaxWindow: c.MaxWindow, RecheckAfter: c.RecheckAfter, PauseAfter: c.ProviderOutage,
		Workers: c.SendWorkers, PerProvider: c.SendPerProvider, PerWorkspace: c.SendPerWorkspace,
		ReapEvery: c.ReapEvery, SweepEvery: c.SweepEvery, SweepGrace: c.SweepEvery}
}

// campaigns are the settings of fan-outs. Their lease is short at most, since it
// is renewed all the time; and one workspace cannot take all places of a
// process that has more than one.
func (c Config) campaigns() campaigns.Config {
	most := max(1, min(c.FanoutsPerWorkspace, c.FanoutWorkers-1))
	return campaigns.Config{TemplateErrorLimit: c.TemplateErrorLimit, Lease: min(c.Lease, 30*time.Second), Grace: c.SweepEvery, PerWorkspace: most, PerSource: min(c.FanoutsPerSource, most)}
}

// logger writes what happens in the house.
func (c Config) logger(out io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // one of the words of its tag
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, o))
	}
	return slog.New(slog.NewTextHandler(out, o))
}

// box opens and seals the secrets in the database.
func (c Config) box() (*secrets.Box, error) {
	if c.SecretKey == "" {
		return nil, errors.New("LEMMA_SECRET_KEY is not set: make one with `openssl rand -base64 32` and keep it, what it sealed cannot be read without it")
	}
	return secrets.ParseKeys(c.SecretKey)
}
