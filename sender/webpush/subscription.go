package webpush

import (
	"crypto/ecdh"
	"encoding/json"
	"errors"
	"net"
	"net/url"
	"strings"

	"lemma/sender/form"
)

// subscription is the token of a browser.
type subscription struct {
	endpoint *url.URL
	public   *ecdh.PublicKey // p256dh
	auth     []byte
}

const authLength = 16 // bytes (RFC 8291, 3.2)

var (
	errNotSubscription = errors.New("the token is no subscription with endpoint, keys.p256dh and keys.auth")
	errEndpoint        = errors.New("the endpoint of the subscription is no https:// URL")
	errKeys            = errors.New("the keys of the subscription are not those of RFC 8291")
)

func readSubscription(token string) (subscription, error) {
	var read struct {
		Endpoint string
		Keys     struct{ P256dh, Auth string }
	}
	if json.Unmarshal([]byte(token), &read) != nil || read.Endpoint == "" {
		return subscription{}, errNotSubscription
	}
	u, err := url.Parse(read.Endpoint)
	if err != nil || u.Scheme != "https" || u.Opaque != "" || u.User != nil || u.Fragment != "" || !form.IsHost(u.Hostname()) {
		return subscription{}, errEndpoint
	}
	point, wrong := decode(read.Keys.P256dh)
	public, err := ecdh.P256().NewPublicKey(point)
	auth, alsoWrong := decode(read.Keys.Auth)
	if wrong != nil || err != nil || alsoWrong != nil || len(auth) != authLength {
		return subscription{}, errKeys
	}
	return subscription{u, public, auth}, nil
}

// audience is the origin of the push service (RFC 6454, 6.1).
func (s subscription) audience() string {
	host, port := strings.ToLower(s.endpoint.Hostname()), s.endpoint.Port()
	if port != "" && port != "443" {
		return "https://" + net.JoinHostPort(host, port)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "https://" + host
}
