// Package providers keeps the accounts at carriers: where letters are handed
// in, with which password, and how fast.
//
// It promises three things. A secret goes in and comes out for the carrier
// alone: the table holds it sealed for its own row, and no answer shows it. A
// secret is sent only where it was meant to be sent when it was entered: a
// change of the destination demands it anew. And all nodes together draw no more than a provider's rate allows, by the
// clock of the database.
//
// What a kind of carrier needs in its config is the carrier's affair; New is
// given a check for it. The count of failures beside the rate is written by
// sender.
package providers

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/secrets"
)

// Provider is an account at a carrier, as it may be shown.
type Provider struct {
	ID            uuid.UUID
	WorkspaceID   uuid.UUID
	Name          string // unique in its workspace
	Channel       lemma.Channel
	Kind          string          // which carrier; fixed when it is made
	Config        json.RawMessage // an object, by the kind's own schema; nothing secret
	HasSecrets    bool
	RatePerSecond *float64 // letters per second over all nodes; nil: as fast as the carrier takes them
	Version       int      // ETag
	CreatedAt     time.Time
	UpdatedAt     time.Time

	Failures     int        // calls in a row that no acceptance followed
	FirstError   string     // the cause: the first of them, or what opened the circuit; empty when it works
	FailingSince *time.Time // when that was
	LastError    string     // the last failure; kept when it works again
	FailedAt     *time.Time // when that was; nil when it never was
	CircuitOpen  bool       // it fails, and is only probed
	NextProbeAt  *time.Time // not before; nil while the circuit is closed
	ThrottledAt  *time.Time // when a batch of it last found no place at a sender
	ThrottledBy  string     // because of which limit
}

// NewProvider is what a provider is made from.
type NewProvider struct {
	ID            uuid.UUID // made by the caller, so that a repeated request makes it once
	Name          string
	Kind          string
	Config        json.RawMessage
	Secrets       json.RawMessage // an object; empty or null for none
	RatePerSecond *float64
}

// Patch changes a provider; what is nil stays as it is.
type Patch struct {
	Name          *string
	Config        json.RawMessage // the whole of it
	Secrets       json.RawMessage // the whole of it; null takes them away
	RatePerSecond *float64
	NoRate        bool // take the rate away
}

// Account is a provider as its carrier needs it.
type Account struct {
	Kind          string
	Config        json.RawMessage
	Secrets       json.RawMessage // opened; nil when there are none
	Version       int
	RatePerSecond *float64
}

// Check reports whether config and secrets make an account of a kind. An error
// for the caller is a *lemma.Error that points into /kind, /config or /secrets.
type Check func(kind string, config, secrets json.RawMessage) error

// Moves names the members of a config that decide where a kind's secrets are
// sent and how they are protected on the way, and in which before and after
// differ; secrets are those that are kept.
type Moves func(kind string, before, after, secrets json.RawMessage) []string

// Providers keeps provider accounts.
type Providers struct {
	pool  *pgxpool.Pool
	box   *secrets.Box
	check Check
	moves Moves
}

// New makes the room. check is asked before anything is saved.
func New(pool *pgxpool.Pool, box *secrets.Box, check Check) *Providers {
	return &Providers{pool: pool, box: box, check: check, moves: anyMember}
}

// OnMove sets what decides whether kept secrets may follow a change of config.
// Without it any change of a config counts. It is set once, before any request.
func (p *Providers) OnMove(m Moves) { p.moves = m }

// anyMember names every member that two configs differ in.
func anyMember(_ string, before, after, _ json.RawMessage) (members []string) {
	var old, now map[string]any
	_, _ = json.Unmarshal(before, &old), json.Unmarshal(after, &now) // both are objects: they were checked
	for name := range old {
		if !reflect.DeepEqual(old[name], now[name]) {
			members = append(members, name)
		}
	}
	for name := range now {
		if _, known := old[name]; !known {
			members = append(members, name)
		}
	}
	slices.Sort(members)
	return members
}

// maxRate is beyond what any carrier takes, and keeps the arithmetic of the
// meter far from its edges.
const maxRate = 1_000_000

// maxConfig bounds config and secrets, in bytes each.
const maxConfig = 64 << 10

// settings are what can be changed, checked together.
type settings struct {
	name    string
	config  json.RawMessage
	secrets json.RawMessage // nil for none
	rate    *float64
}

func (p *Providers) verify(kind string, s settings) error {
	if err := lemma.CheckName(s.name); err != nil {
		return err
	}
	if r := s.rate; r != nil && (math.IsNaN(*r) || *r <= 0 || *r > maxRate) {
		return lemma.Fault("/rate_per_second", "invalid", "a rate is above 0 and at most %d", maxRate)
	}
	if err := object("/config", s.config); err != nil {
		return err
	}
	if s.secrets != nil {
		if err := object("/secrets", s.secrets); err != nil {
			return err
		}
	}
	return p.check(kind, s.config, s.secrets)
}

// object refuses what is no JSON object or holds a NUL, which jsonb cannot.
func object(pointer string, raw json.RawMessage) error {
	if len(raw) > maxConfig {
		return lemma.Fault(pointer, "too_large", "it has %d bytes; %d are allowed", len(raw), maxConfig)
	}
	var found map[string]json.RawMessage
	if err := json.Unmarshal(raw, &found); err != nil || found == nil {
		return lemma.Fault(pointer, "type", "this has to be an object")
	}
	if strings.Contains(string(raw), `\u0000`) {
		return lemma.Fault(pointer, "invalid", "it holds a NUL character")
	}
	return nil
}

// given tells secrets from none: an empty text and null are none.
func given(raw json.RawMessage) json.RawMessage {
	if text := strings.TrimSpace(string(raw)); text == "" || text == "null" {
		return nil
	}
	return raw
}
