package notifications

import (
	"time"

	"github.com/google/uuid"
)

// Notification is one message to one address for one intent. The row is
// written once; Status is derived (the view notification_status).
type Notification struct {
	WorkspaceID  uuid.UUID
	OriginID     uuid.UUID // the campaign; of a journey's, the flow in the month in which it began
	Key          uuid.UUID
	ProfileKey   string
	Address      *string
	Status       string // pending, processing, sent, failed, orphaned, skipped, cancelled
	Reason       *string
	Attempts     int
	Code         *int    // the carrier's reply code
	CarrierID    *string // what the carrier calls the message
	Detail       *string // the carrier's words
	CreatedAt    time.Time
	EndedAt      *time.Time
	FlowID       *uuid.UUID // nil: it is a campaign's
	EnrollmentID *uuid.UUID
	Node         *string // of the flow
	Resolution   *string // sent or not_sent: what a person found out about an orphan
	ResolvedAt   *time.Time
}

// Filter narrows a list.
type Filter struct {
	OriginID   *uuid.UUID // one campaign's
	FlowID     *uuid.UUID // one flow's
	Status     string
	Reason     string
	ProfileKey string
	Address    string // compared in canonical form
}

// Explanation is the whole story of one notification, in the order of time.
type Explanation struct {
	Notification Notification
	Summary      string // one sentence: why it was sent, or not
	// Copies is how many messages may have reached the recipient until now, and
	// how many can at most when all that may still be called is counted.
	CopiesAtLeast, CopiesAtMost, CopiesPossible int
	// Bound is what the strategy allows: 1 under at_most_once, otherwise 2; 0
	// when it was never to be written to.
	Bound   int
	Waiting *Waiting // nil when it has ended
	Steps   []Step
}

// Step is one thing that happened to a notification, or that was decided about it.
type Step struct {
	At      time.Time
	Event   string            // written or skipped; a batch's log (claimed, window, finished ...); an attempt's outcome; evidence; resolved
	Detail  string            // a sentence
	Attempt int               // 0 where it does not belong to one
	Data    map[string]string // worker, lease, window, code, tier ...
}

// Resolution is what a person says of an orphan.
type Resolution struct {
	Resolution string // sent or not_sent
	Note       string
	APIKeyID   uuid.UUID
}
