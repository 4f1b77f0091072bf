package enrollment

// Hook stops a worker between two steps, in tests. A nil hook does nothing.
type Hook struct{ Do func(stage string) }

// At reports the stage that a worker has reached.
func (h *Hook) At(stage string) {
	if h != nil && h.Do != nil {
		h.Do(stage)
	}
}
