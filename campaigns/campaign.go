package campaigns

import (
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/message"
	"lemma/notifications"
)

// Status is the status of a campaign. state.go has the only table of transitions.
type Status string

// The statuses of a campaign.
const (
	Draft     Status = "draft"     // may be edited
	Scheduled Status = "scheduled" // will start by itself at ScheduledAt
	Preparing Status = "preparing" // started; the audience is being opened and checked
	Sending   Status = "sending"   // notifications are being written and sent
	Paused    Status = "paused"    // no new call starts; StatusReason is the reason
	Completed Status = "completed" // nothing is pending
	Cancelled Status = "cancelled" // pending notifications are not sent
	Failed    Status = "failed"    // closed because of StatusReason; pending notifications are not sent
)

// Campaign is one message to one audience. It is created as a draft, sent once,
// and ends as completed, cancelled or failed.
type Campaign struct {
	ID              uuid.UUID
	WorkspaceID     uuid.UUID
	Name            string
	Status          Status
	StatusReason    string        // a code: why it is paused, failed or cancelled, or what it waits for; or empty
	StatusDetail    string        // the same as a sentence
	Channel         lemma.Channel // of the template
	AudienceID      uuid.UUID
	TemplateID      uuid.UUID
	TemplateVersion int
	ProviderID      uuid.UUID
	ProviderKind    string
	Strategy        string // at_least_once (bounded by two) or at_most_once
	FromName        string // this, FromEmail, ReplyTo and Headers are empty unless the channel is email
	FromEmail       string
	ReplyTo         string
	Headers         map[string]string
	Metadata        map[string]string
	Transactional   bool       // no marketing: only bounces and complaints stop it
	TopicID         *uuid.UUID // recipients that have unsubscribed from it are skipped; nil: none
	Conversion                 // an event that is counted; zero: none
	ScheduledAt     *time.Time
	SendDeadline    *time.Time // notifications that are not sent by then are skipped as expired
	StartedAt       *time.Time
	SendingAt       *time.Time
	FinishedAt      *time.Time
	FannedOutAt     *time.Time // the whole audience was read and written
	RowsRead        *int64     // rows of the fan-out that finished; more than Counts.Audience if rows repeat
	Profiles        *int64     // distinct profile keys of a push campaign whose fan-out finished; nil for others
	Version         int        // ETag
	CreatedAt       time.Time
	UpdatedAt       time.Time
	Counts          Counts
	Allowed         []string // the verbs that the status allows

	TemplateErrorLimit *float64 // fraction of messages that may fail to render before it is paused; nil: the setting

	IterationID *uuid.UUID // its experiment; nil: none
}

// Counts has the number of recipients by outcome. Audience is counted
// where notifications are written, the others where they end. They must agree:
// otherwise Balanced is false, which is a fault of Lemma.
type Counts struct {
	Audience   int64
	Sent       int64
	Failed     int64
	Skipped    int64
	Orphaned   int64
	Cancelled  int64
	Pending    int64 // written and not yet sent
	Processing int64 // in an open window, or sent without an outcome yet
	Retried    int64 // second attempts after a first one whose outcome is unknown
	SkippedBy  map[string]int64
	Deliveries map[string]int64 // by delivery state, as carriers reported it
	Engagement notifications.Engagement
	Balanced   bool
}

// NewCampaign has the fields of a new campaign.
type NewCampaign struct {
	ID              uuid.UUID // made by the caller, so that a repeated request creates one campaign
	Name            string
	AudienceID      uuid.UUID
	TemplateID      uuid.UUID
	TemplateVersion int // 0: the newest
	ProviderID      uuid.UUID
	Strategy        string // empty: at_least_once
	FromName        string
	FromEmail       string
	ReplyTo         string
	Headers         map[string]string
	Metadata        map[string]string
	Transactional   bool
	TopicID         *uuid.UUID
	Conversion
	SendDeadline *time.Time

	TemplateErrorLimit *float64 // from 0 to 1; nil: as configured

	Experiment *Experiment // nil: none
}

// Patch changes a draft; a nil field stays unchanged.
type Patch struct {
	Name            *string
	AudienceID      *uuid.UUID
	TemplateID      *uuid.UUID
	TemplateVersion *int // 0: the newest
	ProviderID      *uuid.UUID
	Strategy        *string
	FromName        *string
	FromEmail       *string
	ReplyTo         *string
	Headers         map[string]string // nil: unchanged
	Metadata        map[string]string // nil: unchanged
	Transactional   *bool
	TopicID         *uuid.UUID
	NoTopic         bool        // TopicID was given as null
	Conversion      *Conversion // zero: none from now on
	SendDeadline    *time.Time
	NoDeadline      bool // SendDeadline was given as null

	TemplateErrorLimit *float64
	NoErrorLimit       bool // TemplateErrorLimit was given as null

	Experiment   *Experiment
	NoExperiment bool // Experiment was given as null
}

// Preview is the result that a send would have now.
type Preview struct {
	Rows      int64 // rows that the audience has now
	Sendable  int64
	SkippedBy map[string]int64
	RenderedRows

	Variants []VariantPreview // of an experiment; RenderedRows is the first of them
	Warnings []string         // about the experiment, and links that are not tracked
}

// VariantPreview has the messages of one variant.
type VariantPreview struct {
	Name string
	RenderedRows
}

// RenderedRows are rows that were rendered.
type RenderedRows struct {
	Sample    []Rendered // the first of them
	Truncated bool       // further messages would have exceeded the bytes of a sample

	Rendered     int64          // sendable rows that were selected at random and rendered
	Failed       int64          // of these, those that would be skipped as template_error
	FailedAtMost float64        // upper bound of the fraction of sendable rows that fail, with a confidence of 95 %
	Faults       []*RenderFault // by the number of rows

	bytes int // that the sample may still have
}

// RenderFault is an error of the template, with the rows that cause it.
type RenderFault struct {
	Error       string
	Rows        int64
	ProfileKeys []string // some of them
}

// Rendered is one sample message of a preview.
type Rendered struct {
	ProfileKey string
	Address    string
	message.Content
	Headers [][2]string // by name
	Error   string      // why this row would be skipped as template_error
}
