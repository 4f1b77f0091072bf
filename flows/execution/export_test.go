package execution

// Fill makes r hold as much as it may.
func (r *Ready) Fill() { r.bytes = maxHeld }
