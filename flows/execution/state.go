package execution

import (
	"time"

	"github.com/google/uuid"

	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/webhooks"
)

// Execution is an enrollment while its nodes are evaluated: what was read of it, the
// facts that were found out, and what it has come to. Nothing of it is written
// before it stops.
type Execution struct {
	*Route
	ID           uuid.UUID
	Shard        int16
	ProfileKey   string // profile key
	Source       string
	EnrolledAt   time.Time
	Failures     int
	moved        bool
	waitingSince *time.Time
	awaits       string
	MatchedEvent *uuid.UUID // the event that its wait ended with
	AnswerStep   int        // the step whose message it waits to be answered; 0: none

	Read        Due   // as it was read
	From        Place // where: what the compare-and-set goes by
	FromWaiting bool
	FromMatched bool
	Now         time.Time
	// When it was due, or enrolled, or what it waited for came: what happened after that
	// happened while it stood here, however late we are.
	Arrived time.Time

	// Facts, found out when they are needed.
	trigger     map[string]any
	profile     *Profile // nil: not read
	events      map[string]any
	matchedData map[string]any
	looked      bool            // for the awaited event, when the wait timed out
	matched     map[string]bool // node and case of a branch by SQL -> what the source said
	answer      *webhooks.Outcome
	acted       map[string]string // nodes that have acted already, and how; known only of those that were moved

	// What has come of it.
	Place
	Status   string
	Reason   string
	Detail   string    // with a refusal
	Until    time.Time // when it is due again
	Since    *time.Time
	WaitsFor string
	Overdue  bool // until is now, since the wait was over at arrived, before a worker came to it
	wrote    bool // a message, just now
	Blocked  string
	Log      []Logged
	Sends    []Sending
	Calls    []Call
}

// Place is where an enrollment stands.
type Place struct {
	NodeID string
	Step   int
}

// Profile is a profile as it was read just now.
type Profile struct {
	audience.Row
	Missing bool
	data    map[string]any // the payload, decoded once
}

// Columns are the profile's columns by their names.
func (p *Profile) Columns() map[string]any {
	if p.data == nil {
		p.data = enrollment.ReadObject([]byte(p.Payload))
	}
	return p.data
}

// Logged is one step that was taken.
type Logged struct {
	Step   int
	NodeID string
	Event  string
	Next   string // the next node, where there are several ways; of a message that was skipped the reason
	Data   string
}

// Sending is a notification that a step writes.
type Sending struct {
	*Send
	NodeID  string
	Address string
	Payload string
	Skip    string
}

// Call is a webhook's message that a step writes.
type Call struct {
	NodeID     string
	Step       int
	EndpointID uuid.UUID
	Body       []byte
}

// need is what an execution cannot go on without.
type need int

const (
	nothing need = iota
	needProfile
	needEvents
	needMatchedEvent // the event that it matched, or a last look for it
	needMatch        // what the source says to a branch by SQL
	needAnswer       // of a webhook
	needTrigger      // the data that it came in with
	needActed        // what its nodes have done already
)
