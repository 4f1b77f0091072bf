package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"lemma"

	"github.com/jackc/pgx/v5"

	"lemma/audience"
	"lemma/blobs"
	"lemma/campaigns"
	"lemma/client"
	"lemma/exports"
	"lemma/flows"
	"lemma/retention"
	"lemma/secrets"
	"lemma/sender"
	"lemma/sender/wire"
	"lemma/sentry"
	"lemma/server"
	"lemma/webhooks"
)

// Config has all settings of the program. A setting comes from its flag, else from
// the environment variable in its var tag, else from the file of --env-file, else
// it is the default. A secret X may instead be in a file that X_FILE names.
// docs/reference/settings.md lists them.
//
// A setting that is shared must be equal in all processes, or in all workers: see package
// settings.
type Config struct {
	DatabaseURL string `name:"database-url" var:"DATABASE_URL" secret:"url" group:"Settings" placeholder:"URL" help:"The Postgres database for Lemma's tables."`
	SecretKey   string `kong:"-" var:"LEMMA_SECRET_KEY" shared:"all" secret:""` // no flag: all users of the machine can see flags

	Listen         string `var:"LEMMA_LISTEN" group:"Settings" default:"127.0.0.1:8080" help:"Address of the API."`
	PublicURL      string `var:"LEMMA_PUBLIC_URL" shared:"all" group:"Settings" placeholder:"URL" help:"URL under which carriers and recipients reach this Lemma, such as https://lemma.example.com."`
	MetricsListen  string `var:"LEMMA_METRICS_LISTEN" group:"Settings" default:"127.0.0.1:9464" empty:"none" help:"Address of /metrics of lemma serve; the API's listener if equal to --listen, none if empty."`
	LMTPListen     string `name:"lmtp-listen" var:"LEMMA_LMTP_LISTEN" group:"Settings" placeholder:"ADDRESS" help:"Address of LMTP for mails about bounces, of lemma serve; none if empty. Only the mail server should reach it."`
	MaxConnections int    `var:"LEMMA_MAX_CONNECTIONS" group:"Settings" default:"1000" help:"Maximum number of open connections to the API; others are refused with 503."`
	WorkListen     string `var:"LEMMA_WORK_LISTEN" group:"Settings" placeholder:"ADDRESS" help:"Address of /healthz, /readyz and /metrics of lemma work; none if empty."`

	Lease            time.Duration `var:"LEMMA_LEASE" shared:"workers" group:"Settings" default:"5m" help:"How long a worker holds a claimed batch before the reaper may take it."`
	CallTimeout      time.Duration `var:"LEMMA_CALL_TIMEOUT" group:"Settings" default:"30s" help:"Maximum duration of one call to a carrier; must be well under the lease."`
	ReapEvery        time.Duration `var:"LEMMA_REAP_EVERY" group:"Settings" default:"1m" help:"Interval of the search for expired leases."`
	SweepEvery       time.Duration `var:"LEMMA_SWEEP_EVERY" group:"Settings" default:"30s" help:"Interval of the search for due batches without a job."`
	SendWorkers      int           `var:"LEMMA_SEND_WORKERS" group:"Settings" default:"16" help:"Batches that this process sends at the same time."`
	DirectWorkers    int           `var:"LEMMA_DIRECT_WORKERS" group:"Settings" default:"8" help:"Batches of direct notifications that this process sends at the same time, besides LEMMA_SEND_WORKERS."`
	SendPerProvider  int           `var:"LEMMA_SEND_PER_PROVIDER" group:"Settings" default:"0" help:"Maximum of these for one provider; 0 for three quarters."`
	SendPerWorkspace int           `var:"LEMMA_SEND_PER_WORKSPACE" group:"Settings" default:"0" help:"Maximum of these for one workspace; 0 for three quarters."`
	FanoutWorkers    int           `var:"LEMMA_FANOUT_WORKERS" group:"Settings" default:"16" help:"Audiences that this process reads at the same time."`
	EventWait        time.Duration `var:"LEMMA_EVENT_WAIT" shared:"workers" group:"Settings" default:"10m" help:"How long after its lease a second attempt waits for events of the carrier before the notification is orphaned."`
	ProviderOutage   time.Duration `var:"LEMMA_PROVIDER_OUTAGE" shared:"workers" group:"Settings" default:"15m" help:"How long a provider may fail before the campaigns and flows that use it are paused."`
	MaxWindow        int           `var:"LEMMA_MAX_WINDOW" group:"Settings" default:"500" help:"Maximum number of notifications of a batch whose outcome a crash can leave unknown."`

	FanoutsPerWorkspace int `var:"LEMMA_FANOUTS_PER_WORKSPACE" shared:"workers" group:"Settings" default:"4" help:"Audiences of one workspace that all processes together read at the same time."`
	FanoutsPerSource    int `var:"LEMMA_FANOUTS_PER_SOURCE" shared:"workers" group:"Settings" default:"2" help:"Audiences of one data source that all processes together read at the same time."`

	RecheckAfter time.Duration `var:"LEMMA_RECHECK_AFTER" shared:"workers" group:"Settings" default:"1h" help:"Recipients that have waited longer are read from their audience again before they are sent to."`

	TemplateErrorLimit float64 `var:"LEMMA_TEMPLATE_ERROR_LIMIT" shared:"workers" group:"Settings" default:"0.02" help:"Fraction of messages that may fail to render before a campaign is paused; 1 for never."`

	FlowWorkers    int           `var:"LEMMA_FLOW_WORKERS" group:"Settings" default:"4" help:"Chunks of enrollments that this process advances at the same time."`
	EventRetention time.Duration `var:"LEMMA_EVENT_RETENTION" shared:"workers" group:"Settings" default:"720h" help:"How long events and refusals are kept."`

	NotificationRetention   time.Duration `var:"LEMMA_NOTIFICATION_RETENTION" shared:"workers" group:"Settings" default:"0" help:"How long notifications, attempts and delivery states are kept after their month; 0 for ever."`
	ProviderEventRetention  time.Duration `var:"LEMMA_PROVIDER_EVENT_RETENTION" shared:"workers" group:"Settings" default:"2160h" help:"How long provider events, opens and clicks are kept after their month; 0 for ever."`
	BatchLogRetention       time.Duration `var:"LEMMA_BATCH_LOG_RETENTION" shared:"workers" group:"Settings" default:"2160h" help:"How long the log of batches is kept after its month; 0 for ever."`
	EnrollmentStepRetention time.Duration `var:"LEMMA_ENROLLMENT_STEP_RETENTION" shared:"workers" group:"Settings" default:"0" help:"How long the steps of enrollments are kept after their month; 0 for ever."`
	Blobs                   string        `var:"LEMMA_BLOBS" shared:"all" group:"Settings" placeholder:"URL" help:"Where the files of exports are kept: file:///folder, or s3://bucket/folder?endpoint=https://host&region=name. Without it there are no exports."`
	S3AccessKey             string        `kong:"-" var:"LEMMA_S3_ACCESS_KEY" secret:""`
	S3SecretKey             string        `kong:"-" var:"LEMMA_S3_SECRET_KEY" secret:""`
	Archive                 bool          `var:"LEMMA_ARCHIVE" shared:"workers" group:"Settings" help:"Copy partitions to LEMMA_BLOBS before they are dropped."`
	ExportWorkers           int           `var:"LEMMA_EXPORT_WORKERS" group:"Settings" default:"2" help:"Exports that this process writes at the same time."`
	ExportRetention         time.Duration `var:"LEMMA_EXPORT_RETENTION" shared:"all" group:"Settings" default:"168h" help:"How long an export is kept after its end."`
	ExportSpace             int           `var:"LEMMA_EXPORT_SPACE" shared:"all" group:"Settings" default:"50" help:"GiB that the files of a workspace's exports may have."`

	SourceTimeout         time.Duration `var:"LEMMA_SOURCE_TIMEOUT" group:"Settings" default:"60s" help:"How long a data source may send no rows while it is read."`
	AllowPrivateSources   bool          `var:"LEMMA_ALLOW_PRIVATE_SOURCES" shared:"all" group:"Settings" help:"Allow data sources on loopback and private addresses."`
	AllowPrivateProviders bool          `var:"LEMMA_ALLOW_PRIVATE_PROVIDERS" shared:"all" group:"Settings" help:"Allow mail servers on loopback and private addresses."`
	ShowPrivateAnswers    bool          `var:"LEMMA_SHOW_PRIVATE_ANSWERS" group:"Settings" help:"Show in tests of providers what servers at private addresses answer."`
	AllowPrivateWebhooks  bool          `var:"LEMMA_ALLOW_PRIVATE_WEBHOOKS" shared:"all" group:"Settings" help:"Allow webhooks to loopback and private addresses, and without TLS."`
	AllowWritingSources   bool          `var:"LEMMA_ALLOW_WRITING_SOURCES" shared:"all" group:"Settings" help:"Allow data sources whose role can write, with a warning."`

	URL    string `var:"LEMMA_URL" group:"Settings" default:"http://127.0.0.1:8080" help:"URL of the Lemma that the commands call that work over the API."`
	APIKey string `kong:"-" var:"LEMMA_API_KEY" secret:""` // no flag either

	SentryDSN string `kong:"-" var:"LEMMA_SENTRY_DSN" secret:"url"` // a secret, since it allows to send reports

	LogLevel  string `var:"LEMMA_LOG_LEVEL" group:"Settings" default:"info" enum:"debug,info,warn,error" help:"Minimum level of log messages: ${enum}."`
	LogFormat string `var:"LEMMA_LOG_FORMAT" group:"Settings" default:"text" enum:"text,json" help:"Format of log lines: ${enum}."`

	PGBin string `name:"pg-bin" var:"LEMMA_PG_BIN" group:"Settings" placeholder:"DIR" help:"Folder of initdb and postgres, for the Postgres that dev and bench start."`
}

// check returns the faults of all settings. It is called before anything starts.
// Its errors contain no secrets.
func (c Config) check() error {
	var faults []error
	for name, d := range map[string]time.Duration{
		"LEMMA_LEASE": c.Lease, "LEMMA_CALL_TIMEOUT": c.CallTimeout, "LEMMA_REAP_EVERY": c.ReapEvery, "LEMMA_SWEEP_EVERY": c.SweepEvery,
		"LEMMA_PROVIDER_OUTAGE": c.ProviderOutage, "LEMMA_EVENT_WAIT": c.EventWait,
		"LEMMA_SOURCE_TIMEOUT": c.SourceTimeout, "LEMMA_RECHECK_AFTER": c.RecheckAfter, "LEMMA_EVENT_RETENTION": c.EventRetention,
		"LEMMA_EXPORT_RETENTION": c.ExportRetention,
	} {
		if d <= 0 {
			faults = append(faults, fmt.Errorf("%s is %v: must be positive", name, d))
		}
	}
	for name, n := range map[string]int{
		"LEMMA_SEND_WORKERS": c.SendWorkers, "LEMMA_DIRECT_WORKERS": c.DirectWorkers,
		"LEMMA_FANOUT_WORKERS": c.FanoutWorkers, "LEMMA_FANOUTS_PER_WORKSPACE": c.FanoutsPerWorkspace,
		"LEMMA_FANOUTS_PER_SOURCE": c.FanoutsPerSource,
		"LEMMA_FLOW_WORKERS":       c.FlowWorkers, "LEMMA_MAX_WINDOW": c.MaxWindow,
		"LEMMA_MAX_CONNECTIONS": c.MaxConnections, "LEMMA_EXPORT_WORKERS": c.ExportWorkers, "LEMMA_EXPORT_SPACE": c.ExportSpace,
	} {
		if n < 1 || n > 10_000 {
			faults = append(faults, fmt.Errorf("%s is %d: must be from 1 to 10000", name, n))
		}
	}
	for name, d := range map[string]time.Duration{
		"LEMMA_NOTIFICATION_RETENTION": c.NotificationRetention, "LEMMA_PROVIDER_EVENT_RETENTION": c.ProviderEventRetention,
		"LEMMA_BATCH_LOG_RETENTION": c.BatchLogRetention, "LEMMA_ENROLLMENT_STEP_RETENTION": c.EnrollmentStepRetention,
	} {
		if d != 0 && d < retention.Least {
			faults = append(faults, fmt.Errorf("%s is %v: must be at least %v, or 0 to keep the data for ever", name, d, retention.Least))
		}
	}
	for name, n := range map[string]int{"LEMMA_SEND_PER_PROVIDER": c.SendPerProvider, "LEMMA_SEND_PER_WORKSPACE": c.SendPerWorkspace} {
		if n < 0 || n > c.SendWorkers {
			faults = append(faults, fmt.Errorf("%s is %d: must be from 0 to LEMMA_SEND_WORKERS (%d)", name, n, c.SendWorkers))
		}
	}
	if c.TemplateErrorLimit <= 0 || c.TemplateErrorLimit > 1 {
		faults = append(faults, fmt.Errorf("LEMMA_TEMPLATE_ERROR_LIMIT is %v: must be more than 0 and at most 1", c.TemplateErrorLimit))
	}
	for name, address := range map[string]string{"LEMMA_LISTEN": c.Listen, "LEMMA_WORK_LISTEN": c.WorkListen,
		"LEMMA_METRICS_LISTEN": c.MetricsListen, "LEMMA_LMTP_LISTEN": c.LMTPListen} {
		if _, _, err := net.SplitHostPort(address); err != nil && (address != "" || name == "LEMMA_LISTEN") {
			faults = append(faults, fmt.Errorf("%s must be an address with a port, such as 127.0.0.1:8080: %w", name, err))
		}
	}
	if c.Archive && c.Blobs == "" {
		faults = append(faults, errors.New("LEMMA_ARCHIVE needs LEMMA_BLOBS, where archives are kept"))
	}
	return errors.Join(append(faults, c.checkPublicURL(), c.checkURLs(), c.checkSecrets(), c.sender().Check())...)
}

// checkPublicURL accepts https, and http on a loopback address, without a query.
func (c Config) checkPublicURL() error {
	if c.PublicURL == "" {
		return nil
	}
	u, err := url.Parse(c.PublicURL)
	valid := err == nil && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "" && !strings.HasSuffix(u.Path, "/")
	if !valid || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return errors.New("LEMMA_PUBLIC_URL must be an https URL without a slash at its end, such as https://lemma.example.com " +
			"(http only on a loopback address)")
	}
	return nil
}

// checkURLs refuses credentials in URLs, which lemma config shows.
func (c Config) checkURLs() error {
	if c.Blobs != "" {
		if err := blobs.CheckURL(c.Blobs); err != nil {
			return fmt.Errorf("LEMMA_BLOBS: %w", err)
		}
	}
	if err := client.CheckURL(c.URL); err != nil {
		return fmt.Errorf("LEMMA_URL: %w", err)
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (c Config) checkSecrets() error {
	if c.SentryDSN != "" {
		if err := sentry.Check(c.SentryDSN); err != nil {
			return fmt.Errorf("LEMMA_SENTRY_DSN: %w", err)
		}
	}
	if _, err := pgx.ParseConfig(c.DatabaseURL); err != nil {
		return server.ErrDatabaseURL // the cause would show the password
	}
	if c.SecretKey != "" {
		if _, err := c.box(); err != nil {
			return fmt.Errorf("LEMMA_SECRET_KEY: %w", err)
		}
	}
	return nil
}

// server are the settings of one process.
func (c Config) server() server.Config {
	return server.Config{
		DatabaseURL: c.DatabaseURL, Listen: c.Listen, MetricsListen: c.MetricsListen, WorkListen: c.WorkListen, LMTPListen: c.LMTPListen,
		MaxConnections: c.MaxConnections,
		SendWorkers:    c.SendWorkers, DirectWorkers: c.DirectWorkers, FanoutWorkers: c.FanoutWorkers,
		Sender: c.sender(), Campaigns: c.campaigns(),
		Flows:     flows.Config{Workers: c.FlowWorkers, Retention: c.EventRetention},
		Sources:   audience.Options{AllowPrivate: c.AllowPrivateSources, AllowWriting: c.AllowWritingSources, FetchTimeout: c.SourceTimeout},
		Exports:   exports.Config{Workers: c.ExportWorkers, Retention: c.ExportRetention, Space: int64(c.ExportSpace) << 30},
		Webhooks:  webhooks.Options{AllowPrivate: c.AllowPrivateWebhooks},
		Carriers:  wire.Operator{AllowPrivate: c.AllowPrivateProviders, ShowPrivate: c.ShowPrivateAnswers},
		PublicURL: c.PublicURL,
		Archive:   c.Archive,
		Retention: c.retention(),
	}
}

// retention has how long the data of each kind is kept.
func (c Config) retention() retention.Config {
	return retention.Config{Notifications: c.NotificationRetention, ProviderEvents: c.ProviderEventRetention,
		BatchLog: c.BatchLogRetention, Steps: c.EnrollmentStepRetention}
}

// sender are the settings of package sender.
func (c Config) sender() sender.Config {
	return sender.Config{Lease: c.Lease, CallTimeout: c.CallTimeout, MaxWindow: c.MaxWindow, RecheckAfter: c.RecheckAfter,
		PauseAfter: c.ProviderOutage, EventWait: c.EventWait, Workers: c.SendWorkers, PerProvider: c.SendPerProvider,
		PerWorkspace: c.SendPerWorkspace, ReapEvery: c.ReapEvery, SweepEvery: c.SweepEvery, SweepGrace: c.SweepEvery}
}

// campaigns are the settings of package campaigns. The lease of a fan-out is at most
// 30 s, since it is renewed all the time. One workspace cannot use all workers of a
// process that has several.
func (c Config) campaigns() campaigns.Config {
	most := max(1, min(c.FanoutsPerWorkspace, c.FanoutWorkers-1))
	return campaigns.Config{TemplateErrorLimit: c.TemplateErrorLimit, Lease: min(c.Lease, 30*time.Second), Grace: c.SweepEvery,
		PerWorkspace: most, PerSource: min(c.FanoutsPerSource, most)}
}

// logger returns a logger with the level and the format of the settings. Times are in UTC as
// those of the API, whatever the zone of the process is.
func (c Config) logger(out io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // kong has checked it
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: logged}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, o))
	}
	return slog.New(slog.NewTextHandler(out, o))
}

// The longest texts of a line of the log, in bytes.
const (
	mostText  = 2 << 10
	mostPanic = 16 << 10 // which has its stack in it
)

// logged is an attribute as it is logged: no text is so long that a server or a client could fill
// the disk with it.
func logged(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Time:
		a.Value = slog.TimeValue(v.UTC())
	case error:
		most := mostText
		if _, ok := errors.AsType[*lemma.Panic](v); ok {
			most = mostPanic
		}
		a.Value = slog.StringValue(cut(v.Error(), most))
	case string:
		a.Value = slog.StringValue(cut(v, mostText))
	}
	return a
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// reported returns a logger that also reports errors to Sentry if it is configured, and
// what sends the last reports.
func (c Config) reported(log *slog.Logger) (reporting *slog.Logger, flush func(), err error) {
	if c.SentryDSN == "" {
		return log, func() {}, nil
	}
	r, err := sentry.Open(sentry.Options{DSN: c.SentryDSN})
	if err != nil {
		return nil, nil, fmt.Errorf("LEMMA_SENTRY_DSN: %w", err)
	}
	return slog.New(r.Handler(log.Handler())), r.Flush, nil
}

// blobs opens the store of exports; nil without one.
func (c Config) blobs() (blobs.Store, error) {
	if c.Blobs == "" {
		return nil, nil
	}
	store, err := blobs.OpenURL(c.Blobs, blobs.Credentials{AccessKey: c.S3AccessKey, SecretKey: c.S3SecretKey})
	return store, lemma.Wrap(err, "LEMMA_BLOBS")
}

// box encrypts and decrypts the secrets in the database.
func (c Config) box() (*secrets.Box, error) {
	if c.SecretKey == "" {
		return nil, errors.New("LEMMA_SECRET_KEY is not set: create one with `openssl rand -base64 32` and keep it, since secrets cannot be " +
			"decrypted without it")
	}
	return secrets.ParseKeys(c.SecretKey)
}
