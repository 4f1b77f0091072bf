package links

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

const (
	hostFor     = 10 * time.Second       // until a host in memory is read again
	hostWait    = 500 * time.Millisecond // for a host that is not in memory
	mostHosts   = 10_000                 // in memory
	longestHost = 253                    // bytes (RFC 1035, 2.3.4)
)

// hosts are the workspaces to which the hosts of tracking URLs belong. They are in memory, so that links
// work while the database is away.
type hosts struct {
	mu    sync.Mutex
	known map[string]*host
}

type host struct {
	owner   uuid.UUID // zero: the host is of no workspace
	read    time.Time
	reading bool
}

// VerifyAt is Verify of a token that came to a host. Under the host of another workspace none is
// valid: a workspace could make links and pages under that name. Hosts of no workspace, such as that of
// the public URL, are of all.
func (l *Links) VerifyAt(ctx context.Context, p Purpose, at, token string) (ws uuid.UUID, payload []byte, err error) {
	ws, payload, err = l.Verify(ctx, p, token)
	if err != nil {
		return ws, payload, err
	}
	if owner := l.ownerOf(ctx, at); owner != uuid.Nil && owner != ws {
		l.metrics.refused.WithLabelValues(p.String(), foreignHost).Inc()
		return uuid.Nil, nil, errToken
	}
	return ws, payload, nil
}

// ownerOf returns the workspace of a host, from memory if it is there: it is then read again while the
// request goes on. A host that cannot be read is of no workspace.
func (l *Links) ownerOf(ctx context.Context, at string) uuid.UUID {
	name := hostOf(at)
	if name == "" {
		return uuid.Nil
	}
	l.hosts.mu.Lock()
	known := l.hosts.known[name]
	if known != nil {
		owner := known.owner
		if time.Since(known.read) > hostFor && !known.reading {
			known.reading = true
			go l.readHost(context.WithoutCancel(ctx), name)
		}
		l.hosts.mu.Unlock()
		return owner
	}
	l.hosts.mu.Unlock()
	return l.readHost(ctx, name)
}

// readHost reads the workspace of a host, and keeps it. After an error what was known stays.
func (l *Links) readHost(ctx context.Context, name string) (owner uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, hostWait)
	defer cancel()
	var found uuid.NullUUID
	err := l.pool.QueryRow(ctx, `select workspace_id from tracking_hosts where host = $1`, name).Scan(&found)
	owner = found.UUID
	l.hosts.mu.Lock()
	defer l.hosts.mu.Unlock()
	known := l.hosts.known[name]
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		if known != nil {
			known.reading = false
		}
		return uuid.Nil
	case known == nil && len(l.hosts.known) >= mostHosts: // callers choose the names
		clear(l.hosts.known)
	}
	if l.hosts.known == nil {
		l.hosts.known = map[string]*host{}
	}
	l.hosts.known[name] = &host{owner: owner, read: time.Now()}
	return owner
}

// hostOf is the name in a Host header; empty if it is none.
func hostOf(at string) string {
	if name, _, err := net.SplitHostPort(at); err == nil {
		at = name
	}
	if len(at) > longestHost {
		return ""
	}
	return lemma.HostName(at)
}
