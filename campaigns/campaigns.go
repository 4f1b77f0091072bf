// Package campaigns sends one message to every profile of an audience. It
// guarantees:
//
//   - Each recipient gets at most one notification, however often the fan-out runs,
//     and however many processes run it.
//   - Only profiles of the audience get one.
//   - A cancelled campaign opens no further window.
//   - A campaign is completed only when all its notifications have ended.
//
// It writes notifications; package sender sends them.
package campaigns

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"lemma"
	"lemma/audience"
	"lemma/fence"
	"lemma/message"
	"lemma/notifications"
	"lemma/page"
	"lemma/pgerr"
	"lemma/providers"
	"lemma/slots"
)

// Config has the limits of fan-outs. New replaces zero values by the defaults below.
type Config struct {
	Chunk      int           // recipients per transaction; 4,000
	ChunkBytes int           // their rows of the audience, at most a row more; 8 MiB
	Writers    int           // chunks written at a time for one audience, and twice as many in one process; 3
	BatchSize  int           // notifications per batch, at most; 1,000
	Lease      time.Duration // of a fan-out; 30 s, renewed at a third of it
	Retries    int           // how often a source that is unavailable is read again; 3
	RetryFor   time.Duration // before the first of these, doubled for each; 5 s
	TickEvery  time.Duration // period of schedules, completion, and the check whether a fan-out must stop; 500 ms
	Grace      time.Duration // period of Sweep, which enqueues fan-outs that have no job; 30 s
	CountFor   time.Duration // how long the profiles of a push campaign may be counted; 15 min

	CutOffGrace   time.Duration // between a cut-off and its evaluation by SQL; 5 s
	EventGrace    time.Duration // the same by events, opens and clicks, which may have an earlier time than their commit; a minute
	EvaluateLease time.Duration // of an evaluation, renewed at a third of it; 1 min
	MeasureEvery  time.Duration // least time between two measurements of an experiment; 2 s

	RecheckTimeout time.Duration // how long Recheck may fail before the campaign is paused; 15 min

	PerWorkspace int // audiences of one workspace that all processes together read at a time; 4
	PerSource    int // of these, those on one data source; 2

	// TemplateErrorLimit is the fraction of messages that may fail to render before
	// a campaign without a limit of its own is paused; 0.02. 1 never pauses.
	TemplateErrorLimit float64

	// PublicURL is under which links lead. Without one, campaigns whose recipients need a link to
	// unsubscribe are refused. nil: they never are.
	PublicURL func() string
}

func (c Config) withDefaults() Config {
	set := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	wait := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	if c.PublicURL == nil {
		c.PublicURL = func() string { return message.SampleHost }
	}
	if c.TemplateErrorLimit == 0 {
		c.TemplateErrorLimit = 0.02
	}
	set(&c.Chunk, 4000)
	set(&c.ChunkBytes, 8<<20)
	set(&c.Writers, 3)
	set(&c.BatchSize, 1000)
	set(&c.Retries, 3)
	set(&c.PerWorkspace, 4)
	set(&c.PerSource, 2)
	wait(&c.Lease, 30*time.Second)
	wait(&c.RetryFor, 5*time.Second)
	wait(&c.TickEvery, 500*time.Millisecond)
	wait(&c.Grace, 30*time.Second)
	wait(&c.CountFor, 15*time.Minute)
	wait(&c.CutOffGrace, 5*time.Second)
	wait(&c.EventGrace, time.Minute)
	wait(&c.EvaluateLease, time.Minute)
	wait(&c.MeasureEvery, 2*time.Second)
	wait(&c.RecheckTimeout, 15*time.Minute)
	return c
}

// Campaigns creates campaigns and changes their status.
type Campaigns struct {
	pool      *pgxpool.Pool
	jobs      *river.Client[pgx.Tx] // inserts only
	ledger    *notifications.Ledger
	audiences *audience.Audiences
	templates *message.Templates
	accounts  *providers.Providers
	cfg       Config
	log       *slog.Logger
	metrics   *Metrics

	evaluating *slots.Slots  // iterations that this process evaluates
	measuring  *slots.Slots  // and measures
	checking   *slots.Slots  // those whose guardrails it checks
	reading    chan struct{} // bounds the connections that read members and events of iterations

	ending     endings // what Settle is to check
	settleMost int

	writing  chan struct{}   // bounds the chunks that are being written
	draining context.Context //nolint:containedctx // ends when this process shuts down
	drain    context.CancelFunc

	// Hook is called at named points of a fan-out. Only tests set it.
	Hook func(ctx context.Context, at string, campaign uuid.UUID)
}

func (c *Campaigns) at(ctx context.Context, point string, campaign uuid.UUID) {
	if c.Hook != nil {
		c.Hook(ctx, point, campaign)
	}
}

// Drain makes fan-outs stop after their chunk and release their lease for other processes.
func (c *Campaigns) Drain() { c.drain() }

// Deps are the packages that campaigns call.
type Deps struct {
	Pool      *pgxpool.Pool
	Ledger    *notifications.Ledger
	Audiences *audience.Audiences
	Templates *message.Templates
	Providers *providers.Providers
	Log       *slog.Logger
	Metrics   *Metrics
}

// New returns Campaigns.
func New(r Deps, cfg Config) *Campaigns {
	jobs, err := river.NewClient(riverpgxv5.New(r.Pool), &river.Config{})
	if err != nil {
		panic("insert-only river client: " + err.Error()) // its config is a constant
	}
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.Metrics == nil {
		r.Metrics = NewMetrics(nil)
	}
	cfg = cfg.withDefaults()
	draining, drain := context.WithCancel(context.Background())
	return &Campaigns{draining: draining, drain: drain, writing: make(chan struct{}, 2*cfg.Writers), pool: r.Pool, jobs: jobs,
		settleMost: settleMost, ledger: r.Ledger, audiences: r.Audiences, templates: r.Templates,
		accounts: r.Providers, cfg: cfg, log: r.Log, metrics: r.Metrics,
		evaluating: newWorkspaceSlots(), measuring: newWorkspaceSlots(), checking: newWorkspaceSlots(),
		reading: make(chan struct{}, 2*readers)}
}

const selectCampaign = `
	select c.id, c.workspace_id, c.name, c.status,
		coalesce(c.status_reason, '') as status_reason, coalesce(c.status_detail, '') as status_detail,
		c.audience_id, c.template_id, c.template_version, c.provider_id, c.strategy, c.from_name, c.from_email, c.reply_to,
		c.headers, c.metadata, c.transactional, c.topic_id, coalesce(c.conversion_event, '') as conversion_event,
		coalesce(c.conversion_within, '0') as conversion_within, c.template_error_limit, c.scheduled_at, c.send_deadline, c.started_at,
		c.sending_at, c.finished_at,
		f.finished_at as fanned_out_at, f.rows_read, f.profiles, c.version, c.created_at, c.updated_at, t.channel,
		i.id as iteration_id, p.kind as provider_kind
	from campaigns c left join iterations i on i.workspace_id = c.workspace_id and i.campaign_id = c.id
	left join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
	join providers p on p.workspace_id = c.workspace_id and p.id = c.provider_id
	join templates t on t.workspace_id = c.workspace_id and t.id = c.template_id`

// Create makes a draft. Creating one id twice makes one draft.
func (c *Campaigns) Create(ctx context.Context, workspaceID uuid.UUID, n NewCampaign) (Campaign, error) {
	channel, version, err := c.templateVersion(ctx, workspaceID, n.TemplateID, n.TemplateVersion)
	if err != nil {
		return Campaign{}, err
	}
	if err := checkEnvelope(channel, &n.FromEmail, n.FromName, &n.ReplyTo, n.Headers); err != nil {
		return Campaign{}, err
	}
	if err := lemma.CheckMetadata("/metadata", n.Metadata); err != nil {
		return Campaign{}, err
	}
	if err := c.checkCarried(ctx, workspaceID, channel, n.ProviderID, n.AudienceID); err != nil {
		return Campaign{}, err
	}
	if n.Strategy == "" {
		n.Strategy = "at_least_once"
	}
	if err := n.checkConversion(); err != nil {
		return Campaign{}, err
	}
	err = c.prepareExperiment(ctx, Campaign{WorkspaceID: workspaceID, Channel: channel, TemplateID: n.TemplateID, TemplateVersion: version,
		Headers: n.Headers}, n.Experiment)
	if err != nil {
		return Campaign{}, err
	}
	err = fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
		insert into campaigns (workspace_id, id, name, audience_id, template_id, template_version, provider_id, strategy,
			from_name, from_email, reply_to, headers, metadata, send_deadline, template_error_limit, transactional, topic_id,
			conversion_event, conversion_within)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, nullif($18, ''), nullif($19, '0'::interval))
		on conflict (workspace_id, id) do nothing`,
			workspaceID, n.ID, n.Name, n.AudienceID, n.TemplateID, version, n.ProviderID, n.Strategy,
			n.FromName, n.FromEmail, n.ReplyTo, orEmpty(n.Headers), orEmpty(n.Metadata), n.SendDeadline, n.TemplateErrorLimit,
			n.Transactional, n.TopicID, n.ConversionEvent, n.ConversionWithin)
		if err := fence.Changed(tag, err); err != nil {
			return err
		}
		return saveExperiment(ctx, tx, workspaceID, n.ID, n.Experiment)
	})
	if err != nil {
		return Campaign{}, saving.Explain(err, "create campaign")
	}
	return c.Get(ctx, workspaceID, n.ID)
}

// Get reads one campaign with its counts.
func (c *Campaigns) Get(ctx context.Context, workspaceID, id uuid.UUID) (Campaign, error) {
	found, err := c.read(ctx, selectCampaign+` where c.workspace_id = $1 and c.id = $2`, workspaceID, id)
	if err != nil {
		return Campaign{}, fmt.Errorf("get campaign: %w", err)
	}
	if len(found) == 0 {
		return Campaign{}, lemma.Missing("campaign")
	}
	return found[0], nil
}

var list = page.Named("campaigns", "c.", func(c Campaign) uuid.UUID { return c.ID }, func(c Campaign) string { return c.Name }).
	WithStatus("c.status")

// List returns one page of campaigns.
func (c *Campaigns) List(ctx context.Context, workspaceID uuid.UUID, q page.Query) ([]Campaign, string, error) {
	return list.ReadBy(q, func(end page.Clauses) ([]Campaign, error) {
		return c.read(ctx, selectCampaign+` where c.workspace_id = $1 and `+end.Where+" "+end.Order, end.Args...)
	}, workspaceID)
}

// UsersOf returns the names of campaigns that refer to the audience, template or
// provider with an id: the newest ones first, at most limit.
func (c *Campaigns) UsersOf(ctx context.Context, workspaceID, id uuid.UUID, limit int) ([]string, error) {
	rows, _ := c.pool.Query(ctx, `
		select c.name from campaigns c where c.workspace_id = $1 and ($2 in (audience_id, template_id, provider_id, topic_id)
			or exists (select from iterations i left join iteration_variants v on v.workspace_id = i.workspace_id and v.iteration_id = i.id
				where i.workspace_id = c.workspace_id and i.campaign_id = c.id and $2 in (v.template_id, i.data_source_id)))
		order by c.id desc limit $3`, workspaceID, id, limit)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return names, lemma.Wrap(err, "find campaigns that use %s", id)
}

// NeedAudience are the names of campaigns that have started, have not ended, and find profiles by the
// keys of an audience, or send to its addresses of channels; and of scheduled ones that will send to these.
func (c *Campaigns) NeedAudience(ctx context.Context, workspaceID, audienceID uuid.UUID, profiles bool, channels []lemma.Channel) (
	[]string, error) {
	rows, _ := c.pool.Query(ctx, `
		select c.name from campaigns c join templates t on t.workspace_id = c.workspace_id and t.id = c.template_id
		where c.workspace_id = $1 and c.audience_id = $2
		  and (c.started_at is not null and c.finished_at is null and ($3 or t.channel = any($4))
			or c.status = 'scheduled' and t.channel = any($4))
		order by c.id desc limit 100`, workspaceID, audienceID, profiles, channels)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return names, lemma.Wrap(err, "find campaigns of audience %s", audienceID)
}

func (c *Campaigns) read(ctx context.Context, sql string, args ...any) ([]Campaign, error) {
	rows, _ := c.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[Campaign])
	if err != nil {
		return nil, err
	}
	return found, c.addCounts(ctx, found)
}

// addCounts adds Counts and Allowed to campaigns of one workspace, by one statement.
func (c *Campaigns) addCounts(ctx context.Context, found []Campaign) error {
	var started []uuid.UUID
	for i := range found {
		f := &found[i]
		f.Allowed = table.Allowed(f.Status)
		f.Counts = Counts{SkippedBy: map[string]int64{}, Balanced: true}
		if f.StartedAt != nil {
			started = append(started, f.ID)
		}
	}
	if len(started) == 0 {
		return nil
	}
	counts, err := c.ledger.CountsOf(ctx, found[0].WorkspaceID, started)
	for i := range found {
		if b, ok := counts[found[i].ID]; ok {
			found[i].Counts = Counts{Audience: b.Audience, Sent: b.Sent, Failed: b.Failed, Skipped: b.Skipped,
				Orphaned: b.Orphaned, Cancelled: b.Cancelled,
				Pending: b.Pending, Processing: b.Processing, Retried: b.Retried, SkippedBy: b.SkippedBy, Balanced: b.Balanced,
				Deliveries: b.Deliveries, Engagement: b.Engagement}
		}
	}
	return err
}

// saving maps violated constraints to errors for the caller.
var saving = pgerr.Rules{
	"campaigns_workspace_id_audience_id_fkey":                         unknownID("audience"),
	"campaigns_workspace_id_provider_id_fkey":                         unknownID("provider"),
	"campaigns_workspace_id_template_id_template_version_fkey":        unknownID("template"),
	"campaigns_workspace_id_topic_id_fkey":                            unknownID("topic"),
	"iteration_variants_workspace_id_template_id_template_versi_fkey": unknownID("template"),
	"campaigns_topic": lemma.Fault("/topic_id", "not_allowed",
		"must not be given for a transactional campaign: recipients cannot unsubscribe from it"),
}

func unknownID(what string) *lemma.Error {
	return lemma.Fault("/"+what+"_id", "unknown_id", "must be an existing %s of this workspace", what)
}
