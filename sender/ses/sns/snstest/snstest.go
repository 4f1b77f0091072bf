// Package snstest is Amazon SNS for tests: it signs messages as AWS documents it, and
// serves the certificate and the confirmation of subscriptions over TLS, under the names
// of AWS. Its certificates are made by an authority of its own.
package snstest

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // Signature version 1 uses SHA-1.
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lemma/dial"
)

// The topic that a service has, and its addresses.
const (
	Topic          = "arn:aws:sns:eu-central-1:123456789012:lemma"
	Host           = "sns.eu-central-1.amazonaws.com"
	CertificateURL = "https://" + Host + "/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem"
	SubscribeURL   = "https://" + Host + "/?Action=ConfirmSubscription&TopicArn=" + Topic + "&Token=token"
	issuerURL      = "http://crt.example.com/issuer.cer"
)

// Service is Amazon SNS in one region.
type Service struct {
	Roots     *x509.CertPool
	Transport http.RoundTripper // connects every name to the service

	Names  []string      // of the certificate; sns.amazonaws.com
	Alone  bool          // the file has no issuer: it is fetched
	Expire time.Duration // the certificate's lifetime; an hour
	Status int           // of answers; 200

	mu       sync.Mutex
	requests []string // URLs
	root     authority
	issuer   authority
	signing  *rsa.PrivateKey
}

type authority struct {
	certificate *x509.Certificate
	key         *rsa.PrivateKey
}

// Start starts a service.
func Start(t testing.TB) *Service {
	t.Helper()
	s := &Service{Roots: x509.NewCertPool(), Names: []string{"sns.amazonaws.com"}, Expire: time.Hour, Status: http.StatusOK}
	s.signing = newKey()
	s.root = authority{key: newKey()}
	s.root.certificate = s.root.make(true, "Test Root", s.root.key, time.Hour)
	s.issuer = authority{key: newKey()}
	s.issuer.certificate = s.root.make(true, "Test Issuer", s.issuer.key, time.Hour)
	s.Roots.AddCert(s.root.certificate)
	key := newKey()
	own := s.root.make(false, "", key, time.Hour, Host)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{own.Raw}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(plain.Close)
	s.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			to := secure
			if strings.HasSuffix(address, ":80") {
				to = plain
			}
			return dial.Dialer{AllowPrivate: true}.DialContext(ctx, network, to.Listener.Addr().String())
		}}
	return s
}

func newKey() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
}

// make makes a certificate; the first of an authority signs itself.
func (a authority) make(ca bool, name string, key *rsa.PrivateKey, life time.Duration, hosts ...string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: hosts,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(life), IsCA: ca, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if !ca {
		template.IssuingCertificateURL = []string{issuerURL}
		template.KeyUsage = x509.KeyUsageDigitalSignature
	}
	parent := a.certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		panic(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return made
}

func (s *Service) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Host+r.URL.String())
	s.mu.Unlock()
	if s.Status != http.StatusOK {
		w.Header().Set("Location", "https://"+Host+"/other")
		w.WriteHeader(s.Status)
		return
	}
	if r.Host == "crt.example.com" {
		answer(w, s.issuer.certificate.Raw)
		return
	}
	if !strings.HasSuffix(r.URL.Path, ".pem") {
		return
	}
	leaf := s.issuer.make(false, "", s.signing, s.Expire, s.Names...)
	file := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
	if !s.Alone {
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.issuer.certificate.Raw})...)
	}
	answer(w, file)
}

func answer(w http.ResponseWriter, body []byte) {
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// Requests are the URLs that were called, without their scheme.
func (s *Service) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Notification is a signed notification with a message.
func (s *Service) Notification(id, message string, at time.Time) []byte {
	return s.Sign("2", map[string]string{"Type": "Notification", "MessageId": id, "TopicArn": Topic, "Message": message,
		"Timestamp": at.UTC().Format("2006-01-02T15:04:05.000Z")})
}

// Confirmation is a signed confirmation of a subscription, or with UnsubscribeConfirmation
// of its end.
func (s *Service) Confirmation(kind, subscribeURL string) []byte {
	return s.Sign("1", map[string]string{"Type": kind, "MessageId": "165545c9", "Token": "token", "TopicArn": Topic,
		"Message": "You have chosen", "SubscribeURL": subscribeURL, "Timestamp": time.Now().UTC().Format("2006-01-02T15:04:05.000Z")})
}

// Sign signs the fields of a message. SigningCertURL is CertificateURL unless it is given.
func (s *Service) Sign(version string, fields map[string]string) []byte {
	var text strings.Builder
	for _, name := range []string{"Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"} {
		value, given := fields[name]
		if given && (fields["Type"] == "Notification") == (name != "SubscribeURL" && name != "Token") || given && name != "Subject" {
			text.WriteString(name + "\n" + value + "\n")
		}
	}
	hash, sum := crypto.SHA256, sha256.New()
	if version == "1" {
		hash, sum = crypto.SHA1, sha1.New() //nolint:gosec // Signature version 1 uses SHA-1.
	}
	sum.Write([]byte(text.String()))
	signature, err := rsa.SignPKCS1v15(nil, s.signing, hash, sum.Sum(nil))
	if err != nil {
		panic(err)
	}
	all := maps.Clone(fields)
	all["SignatureVersion"], all["Signature"] = version, base64.StdEncoding.EncodeToString(signature)
	if all["SigningCertURL"] == "" {
		all["SigningCertURL"] = CertificateURL
	}
	body, _ := json.Marshal(all)
	return body
}
