package enrollment

import (
	"sync"

	"github.com/google/uuid"
)

// Shard is a part of a flow's enrollments: what one worker leases and advances at a
// time. The zero value stands for all shards of all flows.
type Shard struct {
	Workspace, Flow uuid.UUID
	Number          int16
}

// Waker wakes the workers of this process where enrollments have become due: in single
// shards, which are cheap to read however many flows there are, or in all. It is a hint.
// Enrollments that become due by time, or through another process, are found by polling
// all shards.
type Waker struct {
	Woken      chan struct{}
	mu         sync.Mutex
	everywhere bool
	shards     map[uuid.UUID][]Shard // by workspace, in the order in which they were enqueued
	workspaces []uuid.UUID           // that have any, in the order in which they are served
	known      map[Shard]bool
}

// maxShards bounds the queued shards; above it all shards are polled.
const maxShards = 10_000

// NewWaker makes a Waker without shards.
func NewWaker() *Waker {
	return &Waker{Woken: make(chan struct{}, 1), shards: map[uuid.UUID][]Shard{}, known: map[Shard]bool{}}
}

// WakeAll reports that enrollments may be due in any shard.
func (b *Waker) WakeAll() {
	b.mu.Lock()
	b.everywhere = true
	b.mu.Unlock()
	b.wake()
}

// WakeShards reports in which shards enrollments have become due.
func (b *Waker) WakeShards(due map[Shard]bool) {
	if len(due) == 0 {
		return
	}
	b.mu.Lock()
	for s := range due {
		b.add(s)
	}
	b.mu.Unlock()
	b.wake()
}

func (b *Waker) add(s Shard) {
	switch {
	case b.known[s]:
		return
	case len(b.known) >= maxShards:
		b.everywhere = true
		return
	case len(b.shards[s.Workspace]) == 0:
		b.workspaces = append(b.workspaces, s.Workspace)
	}
	b.shards[s.Workspace], b.known[s] = append(b.shards[s.Workspace], s), true
}

// Next returns where to poll, if anywhere. All shards come first, since that finds all due
// enrollments and is fair; single shards follow round-robin over workspaces. While more
// remain, another worker is woken.
func (b *Waker) Next() (where Shard, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.everywhere:
		b.everywhere, ok = false, true
	case len(b.workspaces) > 0:
		ws := b.workspaces[0]
		where, ok = b.shards[ws][0], true
		delete(b.known, where)
		b.workspaces, b.shards[ws] = b.workspaces[1:], b.shards[ws][1:]
		if len(b.shards[ws]) > 0 {
			b.workspaces = append(b.workspaces, ws)
		} else {
			delete(b.shards, ws)
		}
	}
	if len(b.workspaces) > 0 {
		b.wake()
	}
	return where, ok
}

func (b *Waker) wake() {
	select {
	case b.Woken <- struct{}{}:
	default:
	}
}

// Shards is the number of shards of a flow, and so of workers that can advance it at a
// time.
const Shards = 4

// ShardOf is the shard of an enrollment.
func ShardOf(enrollment uuid.UUID) int16 { return int16(enrollment[15] & (Shards - 1)) }

// ShardsOf are all shards of a flow.
func ShardsOf(ws, flow uuid.UUID) map[Shard]bool {
	all := map[Shard]bool{}
	for n := range int16(Shards) {
		all[Shard{Workspace: ws, Flow: flow, Number: n}] = true
	}
	return all
}

// EventsShard is the shard under which events and erasures add to the counts. No worker
// leases it.
const EventsShard = Shards
