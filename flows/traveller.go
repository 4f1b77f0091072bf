package flows

import (
	"time"

	"github.com/google/uuid"

	"lemma/audience"
	"lemma/webhooks"
)

// traveller is an enrollment that is being walked: where it was read, what was
// found out about it, and where it has come to. Nothing of it is written until
// it has come to a stop.
type traveller struct {
	*route
	id           uuid.UUID
	turn         int16
	key          string // profile key
	source       string
	enrolledAt   time.Time
	failures     int
	moved        bool
	waitingSince *time.Time
	awaits       string
	heard        *uuid.UUID // the event that its wait ended with
	answerStep   int        // the step whose message it waits to be answered; 0: none

	read        due   // as it was read
	from        place // where: what the compare-and-set goes by
	fromWaiting bool
	fromHeard   bool
	now         time.Time
	arrived     time.Time // when it was due, or enrolled, or what it waited for came: what happened after that happened while it stood here, however late we are

	// Facts, found out when they are needed.
	trigger   map[string]any
	profile   *person // nil: not read
	events    map[string]any
	heardData map[string]any
	looked    bool            // for the awaited event, when the wait timed out
	matched   map[string]bool // node and case of a branch by SQL -> what the source said
	answer    *webhooks.Outcome
	acted     map[string]string // nodes that have acted already, and how; known only of those who were moved

	// What has come of it.
	place
	status   string
	reason   string
	detail   string    // with a refusal
	until    time.Time // when it is due again
	since    *time.Time
	waitsFor string
	overdue  bool // until is now, since the wait was over at arrived, before a worker came to it
	wrote    bool // a letter, just now
	trouble  string
	log      []logged
	sent     []sending
	said     []saying
}

// place is where an enrollment stands.
type place struct {
	node string
	step int
}

// person is a profile as it was read just now.
type person struct {
	audience.Row
	missing bool
	data    map[string]any // the payload, decoded once
}

func (p *person) columns() map[string]any {
	if p.data == nil {
		p.data = readObject([]byte(p.Payload))
	}
	return p.data
}

// logged is one step that was taken.
type logged struct {
	step  int
	node  string
	event string
	way   string // the next node, where there are several ways; of a message that was skipped the reason
	data  string
}

// sending is a notification that a step writes.
type sending struct {
	*send
	node    string
	address string
	payload string
	skip    string
}

// saying is a webhook's message that a step writes.
type saying struct {
	node     string
	step     int
	endpoint uuid.UUID
	body     []byte
}

// Statuses of an enrollment as they are stored; the API shows waiting too.
const (
	Active        = "active"
	Completed     = "completed"
	Exited        = "exited"
	statusRefused = "refused"
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

// need is what a traveller cannot go on without.
type need int

const (
	nothing need = iota
	needProfile
	needEvents
	needHeard   // the event that it heard, or a last look for it
	needMatch   // what the source says to a branch by SQL
	needAnswer  // of a webhook
	needTrigger // the data that it came in with
	needActed   // what its nodes have done already
)
