//go:build !linux

package dial

import (
	"syscall"
	"time"
)

// userTimeout sets nothing where there is no TCP_USER_TIMEOUT: probes remain.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
