package server

import (
	"cmp"
	"maps"
	"time"

	"lemma/audience"
	"lemma/cache"
	"lemma/campaigns"
	"lemma/exports"
	"lemma/flows"
	"lemma/retention"
	"lemma/sender"
	"lemma/sender/wire"
	"lemma/settings"
	"lemma/suppression"
	"lemma/webhooks"
)

// Config is what a process runs with. Zero values are the defaults.
type Config struct {
	DatabaseURL     string // of Postgres; required by OpenPool
	TransactionIdle string // how long a transaction may wait for this process, as Postgres writes it; IdleOfWorkers

	Listen         string // address of the API
	MetricsListen  string // of /metrics; the API's own listener when equal to Listen, none when empty
	WorkListen     string // of the health checks and metrics of a process without the API; none when empty
	LMTPListen     string // of LMTP, for mails about bounces; none when empty
	MaxConnections int    // open connections to the API, at most; 1,000

	SendWorkers   int // batches sent at a time; 16
	DirectWorkers int // batches of direct notifications sent at a time, besides SendWorkers; 8
	FanoutWorkers int // audiences read at a time; 16

	Sender       sender.Config
	Checker      suppression.Config // of suppressions
	StoreFilters time.Duration      // of the lists of suppressions that have grown, how often; 30 s
	Campaigns    campaigns.Config
	Flows        flows.Config
	Sources      audience.Options
	Webhooks     webhooks.Options
	Exports      exports.Config
	Carriers     wire.Operator
	Retention    retention.Config
	Archive      bool   // partitions are archived before they are dropped; needs Deps.Blobs
	PublicURL    string // under which carriers and recipients reach the API; empty: that of other processes

	// History is what the memory of this process keeps to. OpenPool makes it follow the server;
	// nil: nothing is forgotten.
	History *cache.History

	// Settings are the values of settings that concern all processes, by name: see package
	// settings. Those of exports, retention and events count for all.
	Settings map[string]string
}

// How long a transaction may wait for its process. No transaction of the API
// waits for anything outside of Postgres: one that does belongs to a process
// that hangs, and holds locks that other requests wait for.
const (
	IdleOfAPI     = "10s"
	IdleOfWorkers = "60s"
)

// shared are the settings that concern all processes.
func (c Config) shared() map[string]string {
	all := map[string]string{}
	maps.Copy(all, c.Settings)
	if c.PublicURL != "" {
		all[settings.PublicURL] = c.PublicURL
	}
	return all
}

func (c Config) withDefaults() Config {
	c.TransactionIdle = cmp.Or(c.TransactionIdle, IdleOfWorkers)
	c.MaxConnections = cmp.Or(c.MaxConnections, 1000)
	c.SendWorkers, c.FanoutWorkers = cmp.Or(c.SendWorkers, 16), cmp.Or(c.FanoutWorkers, 16)
	c.DirectWorkers = cmp.Or(c.DirectWorkers, 8)
	c.StoreFilters = cmp.Or(c.StoreFilters, 30*time.Second)
	c.Sender.DirectWorkers = c.DirectWorkers
	return c
}
