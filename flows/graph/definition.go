// Package graph compiles a version's JSON document into a graph of nodes, and returns
// all of its faults at once, each with the JSON pointer of its place. It is pure: it
// reads neither clock nor database, and the same document and facts give the same
// graph. Whether what a node names exists is checked in flows.
package graph

import (
	"encoding/json"

	"github.com/google/uuid"
)

// Limits of a definition.
const (
	MaxNodes      = 200
	MaxEventsRead = 100       // names of events that the branches read
	MaxCases      = 20        // of a branch, arms of a split, triggers, exit conditions
	MaxExpression = 4 << 10   // bytes of a condition
	MaxDefinition = 256 << 10 // bytes of the whole document
)

// Definition is a version's document as written. Optional parts are empty when absent.
type Definition struct {
	Description           string          `json:"description,omitempty"` // for people
	Layout                json.RawMessage `json:"layout,omitempty"`      // for editors; kept as it is
	Defaults              *Defaults       `json:"defaults,omitempty"`    // of all send nodes
	AudienceID            string          `json:"audience_id,omitempty"` // where profiles are read; required if anything reads one
	Triggers              []Trigger       `json:"triggers"`
	Recurrence            Recurrence      `json:"recurrence"`
	Overlap               string          `json:"overlap,omitempty"` // deny (default) or allow: several enrollments of one profile at a time
	ExitOn                []ExitOn        `json:"exit_on,omitempty"`
	ExitWhenNotInAudience bool            `json:"exit_when_not_in_audience,omitempty"` // checked whenever an enrollment moves
	Start                 string          `json:"start"`
	Nodes                 map[string]Node `json:"nodes"`

	inherited []inherited // fields of nodes that stand among the defaults
}

// Defaults are the fields that send nodes inherit if they lack them.
type Defaults struct {
	Channel    string `json:"channel,omitempty"`
	ProviderID string `json:"provider_id,omitempty"`
	From       *From  `json:"from,omitempty"`
	ReplyTo    string `json:"reply_to,omitempty"`
	Strategy   string `json:"strategy,omitempty"`
}

// Trigger is an event or audience that enrolls. Direct enrollment needs none.
type Trigger struct {
	Type      string `json:"type"`                // event or audience
	Event     string `json:"event,omitempty"`     // event: its name
	Condition string `json:"condition,omitempty"` // CEL on trigger, profile and now: whether the profile may enroll. See Condition
	Every     string `json:"every,omitempty"`     // audience: ISO 8601, how often it is checked; PT1M or longer
}

// Recurrence is how often one profile may enroll.
type Recurrence struct {
	Policy string   `json:"policy"`           // once, daily, weekly, monthly, per_event, fields
	Zone   string   `json:"zone,omitempty"`   // IANA zone of the days of daily, weekly and monthly; UTC
	Fields []string `json:"fields,omitempty"` // fields: which properties of the trigger
}

// ExitOn is an event that ends an enrollment, whatever node it is on.
type ExitOn struct {
	Event     string `json:"event"`
	Condition string `json:"condition,omitempty"` // CEL on event, the one that arrived, trigger and now
	Goal      bool   `json:"goal,omitempty"`      // it counts as the flow's goal
}

// Node types.
const (
	Send         = "send"
	Delay        = "delay"
	WaitUntil    = "wait_until"
	WaitForEvent = "wait_for_event"
	Branch       = "branch"
	Split        = "split"
	Webhook      = "webhook"
	Exit         = "exit"
)

// Node is one step. Which fields it may have depends on its type; others are rejected.
type Node struct {
	Type        string          `json:"type"`
	Name        string          `json:"name,omitempty"`        // for people
	Description string          `json:"description,omitempty"` // for people
	Layout      json.RawMessage `json:"layout,omitempty"`      // for editors, such as a place on the canvas; kept as it is
	Next        string          `json:"next,omitempty"`        // all but branch, split and exit

	// send
	Channel         string            `json:"channel,omitempty"` // email
	ProviderID      string            `json:"provider_id,omitempty"`
	TemplateID      string            `json:"template_id,omitempty"`
	TemplateVersion int               `json:"template_version,omitempty"` // 0: the newest when the version is published
	From            *From             `json:"from,omitempty"`
	ReplyTo         string            `json:"reply_to,omitempty"`
	Headers         map[string]string `json:"headers,omitempty"`
	Strategy        string            `json:"strategy,omitempty"`      // at_least_once (default) or at_most_once
	Transactional   bool              `json:"transactional,omitempty"` // only bounces and complaints stop it
	TopicID         string            `json:"topic_id,omitempty"`      // recipients that have unsubscribed from it are skipped
	ExpiresAfter    string            `json:"expires_after,omitempty"` // ISO 8601: a message not sent by then is skipped as expired
	Conversion      *Conversion       `json:"conversion,omitempty"`    // an event that is counted

	// delay
	For string `json:"for,omitempty"` // ISO 8601; a day is 24 hours, a week 7 days

	// wait_until: the next instant that fits all of what is given; see Until
	Time       string   `json:"time,omitempty"`        // 09:00 or 09:00:30, local; midnight without it
	Weekdays   []string `json:"weekdays,omitempty"`    // mon, tue, wed, thu, fri, sat, sun
	DateColumn string   `json:"date_column,omitempty"` // a column of the profile: that day, or that instant
	Offset     string   `json:"offset,omitempty"`      // ISO 8601, may be negative (-P3D): added to the date, whole days on the calendar
	Zone       string   `json:"zone,omitempty"`        // IANA; UTC. Used where ZoneColumn gives none
	ZoneColumn string   `json:"zone_column,omitempty"` // a column of the profile with an IANA zone
	OnMissing  string   `json:"on_missing,omitempty"`  // the node for profiles without a readable date; default: next, at once

	// wait_for_event
	Event     string `json:"event,omitempty"`
	Condition string `json:"condition,omitempty"` // CEL on event, the one that arrived, trigger and now
	Timeout   string `json:"timeout,omitempty"`   // ISO 8601
	OnTimeout string `json:"on_timeout,omitempty"`

	// branch: the first case that is true
	Cases        []Case `json:"cases,omitempty"`
	Else         string `json:"else,omitempty"`
	DataSourceID string `json:"data_source_id,omitempty"` // for cases with sql; default: the audience's

	// split
	Arms []Arm  `json:"arms,omitempty"`
	Salt string `json:"salt,omitempty"` // default: the flow's id and the node's, so that splits are independent

	// webhook
	EndpointID string            `json:"endpoint_id,omitempty"`
	Columns    []string          `json:"columns,omitempty"`   // of the profile, that the message contains
	Data       json.RawMessage   `json:"data,omitempty"`      // an object that is copied into the message
	OnStatus   map[string]string `json:"on_status,omitempty"` // "410", "4xx" -> node
	// the node after a message that was given up, or a status not in on_status; default: next
	OnError string `json:"on_error,omitempty"`

	// exit
	Goal bool `json:"goal,omitempty"`
}

// Conversion is an event of the profile that is counted if it occurs within a time after
// a message was sent.
type Conversion struct {
	Event  string `json:"event"`
	Within string `json:"within"` // ISO 8601
}

// From is the sender of a message.
type From struct {
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
}

// Case is one way out of a branch.
type Case struct {
	If   string `json:"if,omitempty"`  // CEL on profile, trigger, events and now: events.bought.times == 0
	SQL  string `json:"sql,omitempty"` // a select that returns profile keys out of the relation people
	Next string `json:"next"`
}

// Arm is one way out of a split.
type Arm struct {
	Name   string `json:"name,omitempty"`
	Weight int    `json:"weight"` // relative to the sum of all weights; at least 1
	Next   string `json:"next"`
}

// Flow is the flow of a definition; splits are salted with it.
type Flow struct{ WorkspaceID, FlowID uuid.UUID }
