package message

import (
	"syscall"
	"time"
)

// threadTime is the processor time of the calling thread (RUSAGE_THREAD of getrusage(2)).
func threadTime() time.Duration {
	const thread = 1
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		return wallTime()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
