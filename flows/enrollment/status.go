package enrollment

// Statuses of an enrollment as they are stored; the API shows waiting too.
const (
	Active    = "active"
	Completed = "completed"
	Exited    = "exited"
	Refused   = "refused" // at its entry; also the outcome of a trigger that does not enroll
)

// Reasons for an exit.
const (
	ExitGoal      = "goal"             // an event of exit_on that is a goal
	ExitCondition = "condition"        // another event of exit_on
	ExitManual    = "manual"           // ended by a request
	ExitArchived  = "flow_archived"    // with its flow
	ExitReplaced  = "version_replaced" // with its version, or its node was mapped to nothing
	ExitLeft      = "left_audience"    // the profile is no longer in the audience
	ExitNoProfile = "no_profile"       // the same, at a node that needs the profile
	ExitErased    = "erased"           // the profile was erased
)

// Enrolled is the outcome of a trigger that enrolls; of any other it is Refused.
const Enrolled = "enrolled"

// Reasons for a refusal. The API documents the list.
const (
	AlreadyEnrolled = "already_enrolled" // an enrollment with the same uniqueness key exists: the recurrence policy
	AlreadyActive   = "already_active"   // the profile has an active enrollment in the flow
	Filtered        = "filtered"         // the trigger's condition is false
	ConditionError  = "condition_error"  // the trigger's condition cannot be evaluated
	IsPaused        = "paused"           // the flow is paused
	NotLive         = "not_live"         // the flow is draft, draining or archived
	NoProfile       = "no_profile"       // the profile is not in the audience
	InvalidKey      = "invalid_key"      // a row of the audience without a usable profile key
	TooManyActive   = "too_many_active"  // the profile has as many active enrollments as one may have
	MissingField    = "missing_field"    // the trigger lacks a property that the recurrence uses
)

// Events of steps. The last three end the enrollment and are its status.
const (
	StepEnrolled  = "enrolled"     // step 0
	StepChecked   = "checked"      // admitted
	StepSent      = "sent"         // a send wrote its notification
	StepSkipped   = "skipped"      // a send wrote a skipped notification, or a node did not act
	StepResumed   = "resumed"      // a wait ended, or did not apply
	StepZone      = "zone_unknown" // a wait uses another zone than the profile's, which is unknown
	StepTimedOut  = "timed_out"    // the awaited event did not arrive
	StepBranched  = "branched"
	StepSplit     = "split"
	StepWebhook   = "webhook"  // a webhook wrote its message
	StepAnswered  = "answered" // the endpoint answered, or the message was given up
	StepMoved     = "moved"    // to another version, or manually
	StepCompleted = Completed
	StepExited    = Exited
	StepRefused   = Refused
)

// StepEvents are all events of steps.
var StepEvents = []string{StepEnrolled, StepChecked, StepSent, StepSkipped, StepResumed, StepZone, StepTimedOut, StepBranched, StepSplit,
	StepWebhook, StepAnswered,
	StepMoved, StepCompleted, StepExited, StepRefused}

// Ends reports that an event is that of an enrollment's last step.
func Ends(event string) bool {
	return event == StepCompleted || event == StepExited || event == StepRefused
}

// Sources of an enrollment.
const (
	FromEvent    = "event"
	FromAudience = "audience"
	FromDirect   = "direct"
)

// Waiting is shown and not stored: active, in a wait that has begun, and not due.
const Waiting = "waiting"

// StepRequest is the field of a step's data that holds the request that moved or ended the
// enrollment. It is not shown.
const StepRequest = "request"

// StepMessages is the field of a send's data with the number of its notifications, if
// there are several.
const StepMessages = "messages"
