package lemma

import (
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// HostName is the name of a host by which hosts are compared: in lower case, without a dot at its end, and
// in ASCII, as browsers send it (RFC 5891). An address has one form, without brackets. It has no port.
func HostName(name string) string {
	if ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if ascii, err := idna.Lookup.ToASCII(name); err == nil {
		return ascii
	}
	return name
}
