package execution

import (
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/webhooks"
)

// Execution is an enrollment while its nodes are evaluated: what was read of it, the facts
// found for it, and its results. Nothing is written before it stops.
type Execution struct {
	*Route
	ID           uuid.UUID
	Shard        int16
	ProfileKey   string // profile key
	Source       string
	EnrolledAt   time.Time
	Failures     int
	moved        bool
	simulated    bool
	waitingSince *time.Time
	awaits       string
	MatchedEvent *uuid.UUID // the event that its wait ended with
	AnswerStep   int        // the step whose message's answer it waits for; 0: none

	Read        Due   // as it was read
	From        Place // expected by the compare-and-set
	FromWaiting bool
	FromMatched bool
	Now         time.Time
	// When it became due, or enrolled, or when its awaited event arrived: a later event
	// arrived while it was on this node, however late the worker is.
	Arrived time.Time
	// Until when a wait could not begin, although it was on its node: see reached.
	delayed time.Time

	// Facts, read when they are needed.
	trigger     *fact
	profile     *Profile        // nil: not read
	events      map[string]past // by name
	matchedData *fact
	checked     bool            // for the awaited event, after the timeout
	matched     map[string]bool // node and case of a branch by SQL -> the source's result
	answer      *webhooks.Outcome
	acted       map[string]acted // nodes that have acted already, and how; read only for enrollments that were moved

	// Results.
	Place
	Status   string
	Reason   string
	Detail   string    // of a refusal
	Until    time.Time // when it is due again
	Since    *time.Time
	WaitsFor string
	entered  *entry
	Overdue  bool // Until is now, since the wait was over at Arrived, before a worker read it
	Blocked  string
	LeftFor  string // the limit for which it was left for the next chunk; then it is as it was read
	Log      []Logged
	Sends    []Sending
	Calls    []Call
}

// Place is the node and step of an enrollment.
type Place struct {
	NodeID string
	Step   int
}

// Profile is a profile as it was just read.
type Profile struct {
	audience.Row
	Missing bool
	others  []audience.Row  // further rows, with other addresses
	more    []lemma.Channel // with addresses in others that were not kept
	data    map[string]any  // the payload, decoded once
}

// Columns are the profile's columns by name.
func (p *Profile) Columns() map[string]any {
	if p.data == nil {
		p.data = enrollment.ReadObject([]byte(p.Payload))
	}
	return p.data
}

// Logged is one step.
type Logged struct {
	Step   int
	NodeID string
	Event  string
	Next   string // the next node, where there are several paths; of the last step the reason
	Data   string
}

// Sending is a notification that a step writes. A push has one for each token.
type Sending struct {
	*Send
	NodeID  string
	Number  int // among those of the step, from 0
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

// need is a fact that an execution cannot continue without.
type need int

const (
	nothing need = iota
	needProfile
	needEvents
	needMatchedEvent // the event that it matched, or a last check for it
	needMatch        // the source's result for a branch by SQL
	needAnswer       // of a webhook
	needTrigger      // the data of its trigger
	needActed        // which of its nodes have acted
	needTime         // more than one chunk may take
	needMemory       // likewise
)
