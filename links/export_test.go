package links

import "time"

// LookupPause is for tests.
const LookupPause = lookupPause

// ForgetHosts makes the hosts in memory older.
func (l *Links) ForgetHosts(by time.Duration) {
	l.hosts.mu.Lock()
	defer l.hosts.mu.Unlock()
	for _, h := range l.hosts.known {
		h.read = h.read.Add(-by)
	}
}
