package sink

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Listen listens for TLS on a loopback port, with a certificate of its own, in DER.
func Listen() (net.Listener, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	sheet := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 7),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, sheet, sheet, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	return l, der, err
}

// WebhookPath is where webhooks are accepted.
const WebhookPath = "/webhooks"

// serveWeb accepts every SendEmail of Amazon SES v2 on HTTP/1.1 and HTTP/2, and webhooks.
func (s *sink) serveWeb(ctx context.Context, l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.sendEmail)
	mux.HandleFunc(WebhookPath, s.webhook)
	server := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	_ = server.Serve(l) // until ctx ends
}

var recipients = []byte(`"ToAddresses":["`)

func (s *sink) sendEmail(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	_, to, ok := bytes.Cut(body, recipients)
	if err != nil || !ok || r.URL.Path != "/v2/email/outbound-emails" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.take(numberIn(to), len(body))
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"MessageId":"`+strconv.FormatInt(s.counts.Load().messages.Load(), 10)+`"}`)
}

func (s *sink) webhook(_ http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	s.takeID(r.Header.Get("webhook-id"), int(n))
}
