package audience

import (
	"net"
	"net/netip"
	"strings"
)

// AllWarnings returns the warnings about the connection, and those of the last test.
func (s Source) AllWarnings() []string { return append(s.connectionWarnings(), s.RoleWarnings...) }

// connectionWarnings returns the warnings about TLS. A source on this machine has none.
func (s Source) connectionWarnings() []string {
	address, _, _ := strings.Cut(s.Address, "/")
	host, _, _ := net.SplitHostPort(address)
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	use := "use sslmode=verify-full in the DSN"
	if s.Kind == MySQL {
		use = "use tls=true in the DSN"
	}
	switch s.TLS {
	case "disable":
		return []string{"the connection is not encrypted; " + use}
	case "prefer":
		return []string{"the connection may be unencrypted, and the server's certificate is not verified; " + use}
	case "require":
		return []string{"the server's certificate is not verified, so the connection can be intercepted; " + use}
	}
	return nil
}
