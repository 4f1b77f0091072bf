package campaigns

import (
	"time"

	"github.com/google/uuid"
)

// Status is where a campaign stands. state.go has the only table of what may follow what.
type Status string

const (
	Draft     Status = "draft"     // may be edited
	Scheduled Status = "scheduled" // will start by itself at ScheduledAt
	Preparing Status = "preparing" // started; the audience is being opened and checked
	Sending   Status = "sending"   // notifications are being written and sent
	Paused    Status = "paused"    // no new call starts; StatusReason says why
	Completed Status = "completed" // nothing is on its way
	Cancelled Status = "cancelled" // what was not yet called never will be
	Failed    Status = "failed"    // closed because of StatusReason; what was not yet called never will be
)

// Campaign is one message to one audience. It is made as a draft, sent once,
// and ends as completed, cancelled or failed.
type Campaign struct {
	ID              uuid.UUID
	WorkspaceID     uuid.UUID
	Name            string
	Status          Status
	StatusReason    string // a code: why it is paused, failed or cancelled, or what it waits for; empty otherwise
	StatusDetail    string // the same as a sentence
	AudienceID      uuid.UUID
	TemplateID      uuid.UUID
	TemplateVersion int
	ProviderID      uuid.UUID
	Strategy        string // at_least_once (bounded by two) or at_most_once
	FromName        string
	FromEmail       string
	ReplyTo         string
	Headers         map[string]string
	Metadata        map[string]string
	ScheduledAt     *time.Time
	SendDeadline    *time.Time // who was not sent to by then is skipped as expired
	StartedAt       *time.Time
	SendingAt       *time.Time
	FinishedAt      *time.Time
	FannedOutAt     *time.Time // the whole audience was read and written
	RowsRead        *int64     // rows of the fan-out that finished; above Books.Audience when rows repeat
	Version         int        // ETag
	CreatedAt       time.Time
	UpdatedAt       time.Time
	Books           Books
	Allowed         []string // the verbs that the status allows

	TemplateErrorLimit *float64 // the share of messages that may fail to render before it is paused; nil: as configured
}

// Books say what became of everybody in the audience. Audience is counted
// where notifications are written, all else where they end: the two agree, or
// Balanced is false and Lemma has a fault.
type Books struct {
	Audience   int64
	Sent       int64
	Failed     int64
	Skipped    int64
	Orphaned   int64
	Cancelled  int64
	Pending    int64 // written and not yet called
	Processing int64 // in a window that is open now, or called with an answer still owed
	Retried    int64 // second attempts that were made necessary by an unknown first
	SkippedBy  map[string]int64
	Balanced   bool
}

// NewCampaign is what a campaign is made from.
type NewCampaign struct {
	ID              uuid.UUID // made by the caller, so that a repeated request makes it once
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
	SendDeadline    *time.Time

	TemplateErrorLimit *float64 // from 0 to 1; nil: as configured
}

// Patch changes a draft; nil leaves a field as it is.
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
	SendDeadline    *time.Time
	NoDeadline      bool // SendDeadline was given as null

	TemplateErrorLimit *float64
	NoErrorLimit       bool // TemplateErrorLimit was given as null
}

// Rehearsal is what a send would do, found out without a side effect.
type Rehearsal struct {
	Rows      int64 // rows that the audience has now
	Sendable  int64
	SkippedBy map[string]int64
	Sample    []Rendered // the first of the rows that were rendered

	Rendered     int64          // sendable rows that were drawn at random and rendered
	Failed       int64          // of these, those that would be skipped as template_error
	FailedAtMost float64        // the share of the sendable rows that fails, at most, with a confidence of 95 %
	Faults       []*RenderFault // by the number of rows
}

// RenderFault is an error of the template, and rows that it is met with.
type RenderFault struct {
	Error       string
	Rows        int64
	ProfileKeys []string // some of them
}

// Rendered is one sample message of a rehearsal.
type Rendered struct {
	ProfileKey string
	Address    string
	Subject    string
	HTML       string
	Text       string
	Headers    [][2]string // by name
	Error      string      // why this row would be skipped as template_error
}
