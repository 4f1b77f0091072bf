package execution

import "lemma/cache"

// Fill makes r hold as much as it may.
func (r *Ready) Fill() { r.bytes = maxHeld }

// Searches is how many searches are remembered.
func (e *Evaluator) Searches() int { return e.searched.Bytes() / cache.EntryBytes }
