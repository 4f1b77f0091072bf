package webhooks

import "github.com/google/uuid"

// maxOfWorkspace is how many of the bytes of maxBuffered the messages of one workspace have.
const maxOfWorkspace = 16 << 20

// reserve returns how many bytes of a workspace a claim or a publication may take; 0: none. The
// caller has locked s.
func (s *buffers) reserve(workspace uuid.UUID) int {
	left := min(maxBuffered-s.bytes, maxOfWorkspace-s.ofWorkspace[workspace])
	bytes := min(maxPrefetchBytes, left/4)
	if bytes < minPrefetchBytes {
		return 0
	}
	s.count(workspace, bytes)
	return bytes
}

// count adds bytes of a workspace; negative: they are free again. The caller has locked s.
func (s *buffers) count(workspace uuid.UUID, bytes int) {
	if s.ofWorkspace == nil {
		s.ofWorkspace = map[uuid.UUID]int{}
	}
	s.bytes += bytes
	if s.ofWorkspace[workspace] += bytes; s.ofWorkspace[workspace] == 0 {
		delete(s.ofWorkspace, workspace)
	}
}

// begin counts the body of a message that was claimed for a call, not in advance.
func (s *buffers) begin(m claimed) claimed {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.counted = m.size()
	s.count(m.WorkspaceID, m.counted)
	return m
}

// size is how many bytes the body of a message has, with that of its event.
func (m claimed) size() int { return len(m.Body) + len(m.event) }
