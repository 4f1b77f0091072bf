package lemma

import (
	"strings"

	"golang.org/x/net/idna"
)

// HostName is the name of a host by which hosts are compared: in lower case, without a dot at its end, and
// in ASCII, as browsers send it (RFC 5891). It has no port.
func HostName(name string) string {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if ascii, err := idna.Lookup.ToASCII(name); err == nil {
		return ascii
	}
	return name
}
