package sns

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"lemma"

	"golang.org/x/sync/singleflight"

	"lemma/dial"
	"lemma/sender"
	"lemma/slots"
)

// Bounds of a client.
const (
	mostKeys     = 64 // certificates
	mostFailures = 256
	mostFetches  = 2 // of certificates in a second, for a topic
	mostChain    = 4 // certificates above the first
	mostBytes    = 64 << 10
	fetchTimeout = 10 * time.Second
	keepKey      = 24 * time.Hour
	keepFailure  = time.Minute
	leastRSA     = 2048
	mostRSA      = 4096
)

// limitsOfFetches are the fetches of certificates at a time, but those that were good before: a
// workspace has many topics, and decides which paths are named.
var limitsOfFetches = slots.Limits{Process: 16, Workspace: 4}

// Client fetches certificates and confirms subscriptions. It is safe for concurrent use.
type Client struct {
	http    *http.Client
	roots   *x509.CertPool
	flights singleflight.Group // by certificate, and by topic before it was good: one whose fetches are used up fails no other
	places  *slots.Slots

	mu       sync.Mutex
	keys     map[string]kept
	failures map[string]failure
	second   time.Time
	fetches  map[string]int // in that second, by topic
}

type kept struct {
	key   *rsa.PublicKey
	until time.Time
}

// failure is why there is no certificate, until it is fetched again.
type failure struct {
	err   error
	until time.Time
}

// Options are settings of the operator.
type Options struct {
	AllowPrivate bool              // also connect to loopback and private addresses
	Roots        *x509.CertPool    // certificate authorities; nil: the machine's
	Transport    http.RoundTripper // for tests and benchmarks; nil: connections by package dial
}

// NewClient makes a client. It does not connect.
func NewClient(o Options) *Client {
	transport := o.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy:                  nil, // a proxy would resolve the name itself, unchecked
			DialContext:            dial.Dialer{AllowPrivate: o.AllowPrivate}.DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
			TLSHandshakeTimeout:    fetchTimeout / 2,
			MaxResponseHeaderBytes: mostBytes,
			DisableKeepAlives:      true,
		}
	}
	return &Client{roots: o.Roots, places: slots.New(limitsOfFetches, func(string) error { return errTooMany }),
		keys: map[string]kept{}, failures: map[string]failure{},
		http: &http.Client{Transport: transport, Timeout: fetchTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Confirm confirms a subscription. The message is one that Open has returned.
func (c *Client) Confirm(ctx context.Context, topic Topic, m *Message) error {
	if m.Type != Subscription || !topic.confirms(m.SubscribeURL) {
		return fmt.Errorf("the URL does not confirm a subscription to the topic: %w", sender.ErrForged)
	}
	_, err := c.get(ctx, m.SubscribeURL)
	return lemma.Wrap(err, "confirm the subscription")
}

// key returns the public key of a certificate.
func (c *Client) key(ctx context.Context, topic Topic, at string) (*rsa.PublicKey, error) {
	if key, err := c.known(at); key != nil || err != nil {
		return key, err
	}
	flight := topic.arn + " " + at
	if c.isGood(at) {
		flight = at
	}
	done := c.flights.DoChan(flight, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		return c.fetch(ctx, topic, at)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*rsa.PublicKey), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("fetch the certificate: %w", ctx.Err())
	}
}

// isGood reports whether a certificate was good before.
func (c *Client) isGood(at string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, good := c.keys[at]
	return good
}

var errTooMany = errors.New("too many certificates are fetched")

func (c *Client) known(at string) (*rsa.PublicKey, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if k, ok := c.keys[at]; ok && now.Before(k.until) {
		return k.key, nil
	}
	if f, ok := c.failures[at]; ok && now.Before(f.until) {
		return nil, f.err
	}
	return nil, nil
}

// fetch fetches and checks a certificate.
func (c *Client) fetch(ctx context.Context, topic Topic, at string) (*rsa.PublicKey, error) {
	admitted, good := c.admit(topic, at)
	if !admitted {
		return nil, errTooMany
	}
	if !good {
		leave, err := c.places.Enter(ctx, slots.Resource{Workspace: topic.Workspace})
		if err != nil {
			return nil, err
		}
		defer leave()
		if key, err := c.known(at); key != nil || err != nil { // another topic has fetched it meanwhile
			return key, err
		}
	}
	key, until, err := c.certificate(ctx, topic, at)
	if err == nil {
		c.keep(at, kept{key, until})
		return key, nil
	}
	err = fmt.Errorf("the certificate: %w", err)
	c.keepFailure(at, err)
	return nil, err
}

// admit counts a fetch of this second, and reports whether the certificate was good. A request
// with another path costs one, so that requests of one topic cannot use up the fetches of others.
// A certificate that was good is always fetched again: forged requests cannot use up the fetches
// of true ones. After a restart, when none is known, true requests are among the first of a second
// as often as their share of all, so that forged ones delay them by a minute or so.
func (c *Client) admit(topic Topic, at string) (admitted, good bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, good = c.keys[at]; good {
		return true, true
	}
	if second := time.Now().Truncate(time.Second); !second.Equal(c.second) {
		c.second, c.fetches = second, map[string]int{}
	}
	c.fetches[topic.arn]++
	return c.fetches[topic.arn] <= mostFetches, false
}

func (c *Client) keep(at string, k kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again := c.keys[at]; !again && len(c.keys) >= mostKeys {
		first := at
		for other, o := range c.keys {
			if first == at || o.until.Before(c.keys[first].until) {
				first = other
			}
		}
		delete(c.keys, first)
	}
	c.keys[at] = k
}

func (c *Client) keepFailure(at string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failures) >= mostFailures {
		clear(c.failures)
	}
	c.failures[at] = failure{err, time.Now().Add(keepFailure)}
}

// certificate fetches a certificate and returns its key, and until when it is kept.
// What is not a certificate of Amazon SNS is forged.
func (c *Client) certificate(ctx context.Context, topic Topic, at string) (*rsa.PublicKey, time.Time, error) {
	body, err := c.get(ctx, at)
	if err != nil {
		return nil, time.Time{}, err
	}
	leaf, chain := certificates(body)
	if leaf == nil {
		return nil, time.Time{}, fmt.Errorf("it cannot be read: %w", sender.ErrForged)
	}
	key, ok := leaf.PublicKey.(*rsa.PublicKey)
	if !ok || key.N.BitLen() < leastRSA || key.N.BitLen() > mostRSA {
		return nil, time.Time{}, fmt.Errorf("it is not for an RSA key of 2048 to 4096 bits: %w", sender.ErrForged)
	}
	if !slices.ContainsFunc(topic.names(), func(name string) bool { return leaf.VerifyHostname(name) == nil }) {
		return nil, time.Time{}, fmt.Errorf("it is not for Amazon SNS: %w", sender.ErrForged)
	}
	if err := c.checkChain(ctx, leaf, chain); err != nil {
		return nil, time.Time{}, err
	}
	until := time.Now().Add(keepKey)
	if leaf.NotAfter.Before(until) {
		until = leaf.NotAfter
	}
	return key, until, nil
}

// certificates reads a PEM file: the certificate and those above it.
func certificates(text []byte) (leaf *x509.Certificate, above []*x509.Certificate) {
	for range mostChain + 1 {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil
		}
		if text = rest; leaf == nil {
			leaf = one
		} else {
			above = append(above, one)
		}
	}
	return leaf, above
}

// checkChain verifies a certificate up to a trusted root. It fetches issuers that the
// file lacks (RFC 5280, 4.2.2.1).
func (c *Client) checkChain(ctx context.Context, leaf *x509.Certificate, above []*x509.Certificate) error {
	pool := x509.NewCertPool()
	last := leaf
	for _, one := range above {
		pool.AddCert(one)
		last = one
	}
	options := x509.VerifyOptions{Roots: c.roots, Intermediates: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for range mostChain {
		_, err := leaf.Verify(options)
		if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); !unknown {
			return forged(err)
		}
		if last, err = c.issuer(ctx, last); err != nil {
			return err
		}
		if last == nil {
			return fmt.Errorf("its issuer is not trusted: %w", sender.ErrForged)
		}
		pool.AddCert(last)
	}
	_, err := leaf.Verify(options)
	return forged(err)
}

func forged(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", err, sender.ErrForged)
}

// issuer fetches the certificate above one; nil when there is none.
func (c *Client) issuer(ctx context.Context, of *x509.Certificate) (*x509.Certificate, error) {
	for _, at := range of.IssuingCertificateURL {
		if u, err := url.Parse(at); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			continue
		}
		body, err := c.get(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("its issuer: %w", err)
		}
		one, err := x509.ParseCertificate(body)
		return one, forged(err)
	}
	return nil, nil
}

// get fetches a small document. An answer that the URL does not exist is forged.
func (c *Client) get(ctx context.Context, at string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes+1))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusForbidden || answer.StatusCode/100 == 3:
		return nil, fmt.Errorf("status %d: %w", answer.StatusCode, sender.ErrForged)
	case answer.StatusCode/100 != 2 || len(body) > mostBytes:
		return nil, fmt.Errorf("status %d, %d bytes", answer.StatusCode, len(body))
	}
	return body, nil
}
