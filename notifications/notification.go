package notifications

import (
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Notification is one message to one address for one intent. Status is derived by
// the view notification_status.
type Notification struct {
	WorkspaceID  uuid.UUID
	OriginID     uuid.UUID // the campaign; for a flow, the flow in the month in which the enrollment began
	Key          uuid.UUID
	Channel      lemma.Channel
	ProfileKey   string
	Address      *string
	Status       string // pending, processing, sent, failed, orphaned, skipped, cancelled
	Reason       *string
	Outcome      *string // of its last attempt: accepted, rejected, refused, unknown or skipped; nil: it has none
	Attempts     int
	Code         *int    // the carrier's reply code
	CarrierID    *string // the carrier's id of the message
	Detail       *string // the carrier's text
	CreatedAt    time.Time
	EndedAt      *time.Time
	FlowID       *uuid.UUID // nil for a campaign
	EnrollmentID *uuid.UUID
	Node         *string // of the flow
	Resolution   *string // sent or not_sent, of an orphaned notification
	ResolvedAt   *time.Time
	Delivery     string            // what the carrier reported: a delivery state, unknown without a report
	DeliveryAt   *time.Time        // when it reached it; nil for unknown
	Metadata     map[string]string // of a direct notification
	DueAt        *time.Time        // nil for one that was inserted as skipped
	ExpiresAt    *time.Time        // nil: never
}

// Filter narrows a list.
type Filter struct {
	OriginID   *uuid.UUID // of one campaign
	FlowID     *uuid.UUID // of one flow
	Direct     bool       // direct ones only
	Channel    lemma.Channel
	Status     string
	Resolution string // of orphaned ones: sent, not_sent, or none
	Delivery   string
	Reason     string
	ProfileKey string
	Address    string // compared in the canonical form of the notification's channel
}

// Explanation is the history of one notification, in the order of time.
type Explanation struct {
	Notification Notification
	Summary      string // one sentence: why it was sent, or not
	// Deliveries until now are between AtLeast and AtMost. Possible adds the calls
	// that can still be made.
	DeliveriesAtLeast, DeliveriesAtMost, DeliveriesPossible int
	Bound                                                   int      // by the strategy: 1 or 2; 0 for a row that was inserted as skipped
	ProviderKind                                            string   // of its batch; empty for a row that was inserted as skipped
	Waiting                                                 *Waiting // nil when it has ended
	Steps                                                   []Step
}

// Step is one event of a notification.
type Step struct {
	At      time.Time
	Event   string            // written, skipped, an event of batch_log, an outcome, evidence or resolved
	Detail  string            // a sentence
	Attempt int               // 0 for none
	Data    map[string]string // worker, lease, window, code, tier ...
}

// Resolution is what a user found out about an orphaned notification.
type Resolution struct {
	Resolution string // sent or not_sent
	Note       string
	APIKeyID   uuid.UUID
}
