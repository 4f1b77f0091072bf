// Package providers stores the accounts at carriers: server, credentials and rate.
// It guarantees:
//
//   - Secrets are write-only: they are stored encrypted for their row, and only the
//     carrier gets them.
//   - A change of the destination must repeat the secrets. So they are sent only to
//     the destination that they were entered for.
//   - All processes together send no more than the rate of a provider, by the clock
//     of the database.
//
// A carrier defines its config; New gets a function that checks it. Package sender
// writes the failures of a provider.
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

// Provider is an account at a carrier, without its secrets.
type Provider struct {
	ID            uuid.UUID
	WorkspaceID   uuid.UUID
	Name          string // unique in its workspace
	Channel       lemma.Channel
	Kind          string          // the carrier; cannot be changed
	Config        json.RawMessage // an object by the schema of the kind, without secrets
	HasSecrets    bool
	Receives      bool     // it is configured to receive the carrier's webhooks
	RatePerSecond *float64 // messages per second of all processes; nil: as fast as the carrier accepts them
	Version       int      // ETag
	CreatedAt     time.Time
	UpdatedAt     time.Time

	Failures     int        // consecutive attempts without an acceptance
	FirstError   string     // the first of these, or the error that opened the circuit; empty if there is none
	FailingSince *time.Time // time of FirstError
	LastError    string     // the last error; kept after the provider recovers
	FailedAt     *time.Time // time of FirstError; nil if there is none
	CircuitOpen  bool       // it fails, and only probes are sent
	NextProbeAt  *time.Time // earliest time of the next probe; nil while the circuit is closed
	ThrottledAt  *time.Time // when a limit of a sender last deferred one of its batches
	ThrottledBy  string     // that limit
}

// NewProvider has the fields of a new provider.
type NewProvider struct {
	ID            uuid.UUID // made by the caller, so that a repeated request creates one provider
	Name          string
	Kind          string
	Channel       lemma.Channel // empty: the first that the kind carries
	Config        json.RawMessage
	Secrets       json.RawMessage // an object; empty or null: none
	RatePerSecond *float64
}

// Patch changes a provider; a nil field stays unchanged.
type Patch struct {
	Name          *string
	Config        json.RawMessage // the whole object
	Secrets       json.RawMessage // the whole object; null removes them
	RatePerSecond *float64
	NoRate        bool // remove the rate
}

// Account is a provider for its carrier.
type Account struct {
	Kind          string
	Channel       lemma.Channel
	Config        json.RawMessage
	Secrets       json.RawMessage // decrypted; nil if there are none
	Version       int
	RatePerSecond *float64
}

// Check checks the config and the secrets of a kind. An error
// for the caller is a *lemma.Error that points into /kind, /config or /secrets.
type Check func(kind string, config, secrets json.RawMessage) error

// Moves returns the members of a config that differ between before and after and
// that decide where the secrets are sent, or how they are protected on the way.
// secrets are those that are kept.
type Moves func(kind string, before, after, secrets json.RawMessage) []string

// Channels returns the channels that a kind carries; the first is the default.
type Channels func(kind string) []lemma.Channel

// Receives reports whether an account is configured to receive the carrier's webhooks.
type Receives func(kind string, channel lemma.Channel, config, secrets json.RawMessage) bool

// Providers stores accounts at carriers.
type Providers struct {
	pool  *pgxpool.Pool
	box   *secrets.Box
	check Check
	moves Moves

	channels Channels
	receives Receives
}

// New returns Providers. check is called before an account is saved.
func New(pool *pgxpool.Pool, box *secrets.Box, check Check) *Providers {
	return &Providers{pool: pool, box: box, check: check, moves: anyMember,
		channels: func(string) []lemma.Channel { return []lemma.Channel{lemma.Email} },
		receives: func(string, lemma.Channel, json.RawMessage, json.RawMessage) bool { return false }}
}

// OnChannel sets, before any request, the channels of each kind: email by default.
func (p *Providers) OnChannel(c Channels) { p.channels = c }

// OnReceive sets, before any request, which accounts receive webhooks: none by default.
func (p *Providers) OnReceive(r Receives) { p.receives = r }

// channelOf returns the channel of a new provider: the requested one, or the default.
func (p *Providers) channelOf(n NewProvider) (lemma.Channel, error) {
	carried := p.channels(n.Kind)
	switch {
	case n.Channel == "" && len(carried) > 0:
		return carried[0], nil
	case slices.Contains(carried, n.Channel):
		return n.Channel, nil
	}
	names := make([]string, len(carried))
	for i, c := range carried {
		names[i] = string(c)
	}
	return "", lemma.Fault("/channel", "wrong_channel", "this kind of provider carries %s", strings.Join(names, ", "))
}

// OnMove sets, before any request, which changes of config keep secrets: none by default.
func (p *Providers) OnMove(m Moves) { p.moves = m }

// anyMember returns every member in which two configs differ.
func anyMember(_ string, before, after, _ json.RawMessage) (members []string) {
	var old, now map[string]any
	_, _ = json.Unmarshal(before, &old), json.Unmarshal(after, &now) // both have been checked to be objects
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

// maxRate is more than any carrier accepts, and small enough for the arithmetic of
// the meter.
const maxRate = 1_000_000

// maxConfig bounds config and secrets, in bytes each.
const maxConfig = 64 << 10

// settings are the fields that can be changed. They are checked together.
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
		return lemma.Fault("/rate_per_second", "invalid", "must be above 0 and at most %d", maxRate)
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

// object checks that raw is a JSON object without NUL, which jsonb cannot store.
func object(pointer string, raw json.RawMessage) error {
	if len(raw) > maxConfig {
		return lemma.Fault(pointer, "too_large", "has %d bytes; must have at most %d", len(raw), maxConfig)
	}
	var found map[string]json.RawMessage
	if err := json.Unmarshal(raw, &found); err != nil || found == nil {
		return lemma.Fault(pointer, "type", "must be an object")
	}
	if lemma.HasNUL(raw) {
		return lemma.Fault(pointer, "invalid", "must not contain a NUL character")
	}
	return nil
}

// given returns nil for an empty text and for null.
func given(raw json.RawMessage) json.RawMessage {
	if text := strings.TrimSpace(string(raw)); text == "" || text == "null" {
		return nil
	}
	return raw
}
