package enrollment

// Statuses of an enrollment as they are stored; the API shows waiting too.
const (
	Active    = "active"
	Completed = "completed"
	Exited    = "exited"
	Refused   = "refused" // at its entry; also what came of a trigger that enrolls nobody
)

// Reasons for which an enrollment ended without arriving.
const (
	ExitGoal      = "goal"             // the event that the flow was for
	ExitCondition = "condition"        // another event of exit_on
	ExitManual    = "manual"           // somebody ended it
	ExitArchived  = "flow_archived"    // with its flow
	ExitReplaced  = "version_replaced" // with its version, or its node was mapped to nothing
	ExitLeft      = "left_audience"    // the profile is no longer in the audience
	ExitNoProfile = "no_profile"       // the same, at a node that needs the profile
	ExitErased    = "erased"           // the person was erased
)

// Enrolled is what came of a trigger that enrolls; of any other it is Refused.
const Enrolled = "enrolled"

// Reasons for which a trigger does not enroll. The API documents the list.
const (
	AlreadyEnrolled = "already_enrolled" // an enrollment with the same uniqueness key exists: the recurrence policy
	AlreadyActive   = "already_active"   // the profile has an active enrollment in the flow
	Filtered        = "filtered"         // the trigger's condition is false
	ConditionError  = "condition_error"  // the trigger's condition cannot be decided with what there is
	IsPaused        = "paused"           // the flow is paused
	NotLive         = "not_live"         // the flow is draft, draining or archived
	NoProfile       = "no_profile"       // the profile is not in the audience
	InvalidKey      = "invalid_key"      // a person of the audience without a usable profile key
	MissingField    = "missing_field"    // the recurrence goes by a property that the trigger lacks
)

// Events of steps. The last three end the enrollment and are its status.
const (
	StepEnrolled  = "enrolled"     // step 0: how it came in
	StepChecked   = "checked"      // admitted
	StepSent      = "sent"         // a send wrote its notification
	StepSkipped   = "skipped"      // a send wrote that it is not sent, or a node did not act
	StepResumed   = "resumed"      // a wait is over, or was none
	StepZone      = "zone_unknown" // a wait goes by another zone than the profile's, which is none
	StepTimedOut  = "timed_out"    // the awaited event did not come
	StepBranched  = "branched"
	StepSplit     = "split"
	StepWebhook   = "webhook"  // a webhook wrote its message
	StepAnswered  = "answered" // it was answered, or given up
	StepMoved     = "moved"    // to another version, or manually
	StepCompleted = Completed
	StepExited    = Exited
	StepRefused   = Refused
)

// StepEvents are all of them.
var StepEvents = []string{StepEnrolled, StepChecked, StepSent, StepSkipped, StepResumed, StepZone, StepTimedOut, StepBranched, StepSplit,
	StepWebhook, StepAnswered,
	StepMoved, StepCompleted, StepExited, StepRefused}

// Sources of an enrollment.
const (
	FromEvent    = "event"
	FromAudience = "audience"
	FromDirect   = "direct"
)

// Waiting is shown and not stored: active, in a wait that has begun, and
// not due.
const Waiting = "waiting"

// StepRequest is the field of a step's data with the request that moved or ended the
// enrollment. It is not shown.
const StepRequest = "request"
