package notifications

// SetPages makes Unhold open at most so many batches, and each page of Release.
func (l *Ledger) SetPages(first, page int) { l.unholdMost, l.releasePage = first, page }
