package dial

import (
	"context"
	"net"
	"time"
)

// Bounded dials an address of the operator's own configuration, which is not
// checked. Its connections fail when the peer acknowledges nothing for about
// dead, neither data (TCP_USER_TIMEOUT, on Linux) nor probes.
func Bounded(dead, connect time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	probe := max(dead/6, time.Second)
	dialer := net.Dialer{
		Timeout:         connect,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: dead / 2, Interval: probe, Count: 3},
		Control:         userTimeout(dead),
	}
	return dialer.DialContext
}
