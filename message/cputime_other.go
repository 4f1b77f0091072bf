//go:build !linux

package message

import "time"

// threadTime is the wall-clock time where that of a thread cannot be read.
func threadTime() time.Duration { return wallTime() }
