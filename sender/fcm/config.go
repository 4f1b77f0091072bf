package fcm

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/url"
	"regexp"
	"strings"
	"time"

	"lemma/sender/form"
	"lemma/sender/wire"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	project  string
	endpoint *url.URL       // without a path
	ttl      *time.Duration // nil: the platform's
	account  serviceAccount
	most     int           // requests at a time
	timeout  time.Duration // of a call
}

// serviceAccount is what requests access tokens.
type serviceAccount struct {
	email, keyID string
	key          *rsa.PrivateKey
	tokenURI     *url.URL
}

const (
	defaultEndpoint = "https://fcm.googleapis.com"
	defaultTokenURI = "https://oauth2.googleapis.com/token"
	defaultTimeout  = 30
	mostTTL         = 2_419_200 // seconds; the most of FCM
)

var projectID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{2,61}[a-z0-9]$`)

func parse(config, secrets json.RawMessage, o wire.Operator) (settings, error) {
	f := form.Form{Noun: "an FCM provider"}
	s := settings{most: wire.DefaultMost}
	seconds, endpoint := defaultTimeout, defaultEndpoint
	var ttl *int
	var account json.RawMessage
	f.Object("/config", config, map[string]any{"project_id": &s.project, "endpoint": &endpoint, "ttl_seconds": &ttl,
		"max_requests": &s.most, "timeout_seconds": &seconds})
	f.Object("/secrets", secrets, map[string]any{"service_account": &account})
	s.timeout = time.Duration(seconds) * time.Second
	if f.OK() {
		s.endpoint = o.Server(&f, "/config/endpoint", endpoint)
		named := s.readAccount(&f, account, o) || s.project != ""
		s.readTTL(&f, ttl)
		wire.CheckNumbers(&f, s.most, seconds)
		if named && !projectID.MatchString(s.project) {
			f.Fault("/config/project_id", "invalid_name", "must be the id of a Firebase project, or left out for the service account's")
		}
	}
	return s, f.Err()
}

func (s *settings) readTTL(f *form.Form, seconds *int) {
	if seconds == nil {
		return
	}
	if *seconds < 0 || *seconds > mostTTL {
		f.Fault("/config/ttl_seconds", "out_of_range", "must be from 0 to 2419200 (4 weeks)")
	}
	ttl := time.Duration(*seconds) * time.Second
	s.ttl = &ttl
}

// readAccount reads the JSON file of a service account. Of its members, Lemma uses the
// address, the key and where tokens are requested, and the project if the config names none.
// It reports whether raw is such a file.
func (s *settings) readAccount(f *form.Form, raw json.RawMessage, o wire.Operator) bool {
	const at = "/secrets/service_account"
	var file struct {
		Type      string `json:"type"`
		ProjectID string `json:"project_id"`
		KeyID     string `json:"private_key_id"`
		Key       string `json:"private_key"`
		Email     string `json:"client_email"`
		TokenURI  string `json:"token_uri"`
	}
	if !form.Present(raw) || json.Unmarshal(raw, &file) != nil || file.Type != "service_account" {
		f.Fault(at, "required", "must be the JSON key of a service account of Google Cloud")
		return false
	}
	if s.project == "" {
		s.project = file.ProjectID
	}
	if file.TokenURI == "" {
		file.TokenURI = defaultTokenURI
	}
	s.account = serviceAccount{email: file.Email, keyID: file.KeyID, key: readKey(file.Key),
		tokenURI: o.Endpoint(f, at+"/token_uri", file.TokenURI)}
	if s.account.key == nil {
		f.Fault(at+"/private_key", "invalid_key", "must be an RSA key of 2048 to 4096 bits and two primes (PEM, PKCS #8)")
	}
	if _, domain, ok := strings.Cut(file.Email, "@"); !ok || !form.IsName(domain) || len(file.Email) > 300 {
		f.Fault(at+"/client_email", "required", "must be the email address of the service account")
	}
	return true
}

// Sizes of keys in bits. The time of a signature grows with the cube of the size. One of 4096
// bits has less than mostDER bytes.
const (
	leastRSA = 2048
	mostRSA  = 4096
	mostDER  = 3000
)

func readKey(text string) *rsa.PrivateKey {
	block, _ := pem.Decode([]byte(text))
	if block == nil || len(block.Bytes) > mostDER {
		return nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil
	}
	key, ok := parsed.(*rsa.PrivateKey)
	if !ok || key.N.BitLen() < leastRSA || key.N.BitLen() > mostRSA || len(key.Primes) != 2 { // with more a signature takes longer
		return nil
	}
	return key
}

// Moves returns the endpoint when it changes: access tokens are sent there.
var Moves = wire.Moves("endpoint", parse, func(old, next settings) bool {
	return old.endpoint != nil && next.endpoint != nil && wire.HostOf(old.endpoint) == wire.HostOf(next.endpoint)
})
