package bench

import (
	"bytes"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"time"

	"lemma"
	"lemma/sender"
	"lemma/sender/gateway"
	"lemma/sender/ses"
	"lemma/sender/ses/sns"
	"lemma/sender/twilio"
	"lemma/sender/wire"
	"lemma/signing"
)

// hookFormat is how a carrier reports.
type hookFormat struct {
	name    string // of the figure
	kind    sender.Kind
	config  string
	secrets func(hookTarget) string
	request func(t hookTarget, i int) hookRequest // the event of notification i
}

// hookRequest is a request of a carrier.
type hookRequest struct {
	path   string
	header http.Header
	body   []byte
}

// bytes is the request as it is sent.
func (r hookRequest) bytes() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: lemma.invalid\r\nContent-Length: %d\r\n", r.path, len(r.body))
	_ = r.header.Write(&b) // a buffer has no errors
	b.WriteString("\r\n")
	b.Write(r.body)
	return b.Bytes()
}

func (t hookTarget) notification(i int) string {
	return lemma.FormatNotificationID(t.origin, t.keyOf(i))
}

// benchPublic is the public URL of the instances, which Twilio signs.
const benchPublic = "https://lemma.invalid"

// genericFormat is the format of a customer's own service.
var genericFormat = hookFormat{name: "hooks", kind: gateway.Kind(wire.Operator{}), config: `{"url":"https://gw.example/send"}`,
	secrets: func(t hookTarget) string {
		return fmt.Sprintf(`{"signing_secret":%[1]q,"webhook_secret":%[1]q}`, signing.Secret(t.key))
	},
	request: func(t hookTarget, i int) hookRequest {
		now := time.Now()
		body := fmt.Appendf(nil, `{"type":"delivered","notification_id":%q,"attempt":1,"carrier_id":"m-%d","occurred_at":%q}`,
			t.notification(i), i, now.UTC().Format(time.RFC3339Nano))
		header := http.Header{"Content-Type": {"application/json"}}
		signing.Set(header, [][]byte{t.key}, fmt.Sprint("e", i), now, body)
		return hookRequest{t.path, header, body}
	}}

const (
	twilioAccount = "AC00000000000000000000000000000001"
	twilioToken   = "auth-token-0123456789"
)

// twilioFormat is a status callback of Twilio.
var twilioFormat = hookFormat{name: "hooks_twilio", kind: twilio.Kind(wire.Operator{PublicURL: func() string { return benchPublic }}),
	config:  `{"account_sid":"` + twilioAccount + `","messaging_service_sid":"MG00000000000000000000000000000002"}`,
	secrets: func(hookTarget) string { return `{"auth_token":"` + twilioToken + `"}` },
	request: func(t hookTarget, i int) hookRequest {
		path := t.path + "?n=" + t.notification(i) + "&a=1"
		sid := fmt.Sprintf("SM%032x", i)
		mac := hmac.New(sha1.New, []byte(twilioToken))
		_, _ = fmt.Fprintf(mac, "%s%sAccountSid%sApiVersion2010-04-01From+15005550006MessageSid%sMessageStatusdeliveredSmsSid%[4]sSmsStatus"+
			"deliveredTo+4915100%06[5]d", benchPublic, path, twilioAccount, sid, i)
		body := url.Values{"AccountSid": {twilioAccount}, "ApiVersion": {"2010-04-01"}, "From": {"+15005550006"}, "MessageSid": {sid},
			"MessageStatus": {"delivered"}, "SmsSid": {sid}, "SmsStatus": {"delivered"}, "To": {fmt.Sprintf("+4915100%06d", i)}}
		return hookRequest{path, http.Header{"Content-Type": {"application/x-www-form-urlencoded"},
			"X-Twilio-Signature": {base64.StdEncoding.EncodeToString(mac.Sum(nil))}}, []byte(body.Encode())}
	}}

const (
	snsTopicARN    = "arn:aws:sns:eu-central-1:123456789012:lemma"
	snsCertificate = "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem"
)

// snsTopic signs messages as Amazon SNS, with a certificate of its own authority.
type snsTopic struct {
	key   *rsa.PrivateKey
	file  []byte // the certificate
	roots *x509.CertPool
}

func newSNSTopic() (*snsTopic, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"},
		DNSNames: []string{"sns.amazonaws.com"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	file := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(file)
	return &snsTopic{key: key, file: file, roots: roots}, nil
}

// RoundTrip answers the certificate.
func (s *snsTopic) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: io.NopCloser(bytes.NewReader(s.file))}, nil
}

// format is an event of Amazon SES as Amazon SNS sends it.
func (s *snsTopic) format() hookFormat {
	return hookFormat{name: "hooks_sns", kind: ses.KindOver(wire.Operator{}, sns.NewClient(sns.Options{Roots: s.roots, Transport: s})),
		config: `{"region":"eu-central-1","configuration_set":"lemma","topic_arn":"` + snsTopicARN + `"}`,
		secrets: func(hookTarget) string {
			return `{"access_key_id":"AKIDEXAMPLE123456789","secret_access_key":"secret"}`
		},
		request: func(t hookTarget, i int) hookRequest {
			now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
			event := fmt.Sprintf(`{"eventType":"Delivery","mail":{"timestamp":%[1]q,"source":"Shop <news@shop.example>","messageId":"m-%[2]d",
				"destination":["p%[2]d@shop.example"],"tags":{"ses:configuration-set":["lemma"],"lemma_ntf":[%[3]q],"lemma_attempt":["1"]}},
				"delivery":{"timestamp":%[1]q,"processingTimeMillis":546,"recipients":["p%[2]d@shop.example"],
				"smtpResponse":"250 2.6.0 Message received","reportingMTA":"a8-70.smtp-out.amazonses.com"}}`, now, i, t.notification(i))
			id := fmt.Sprintf("165545c9-2a5c-472c-8df2-%012x", i)
			sum := sha256.Sum256(fmt.Appendf(nil, "Message\n%s\nMessageId\n%s\nTimestamp\n%s\nTopicArn\n%s\nType\nNotification\n",
				event, id, now, snsTopicARN))
			signature, _ := rsa.SignPKCS1v15(nil, s.key, crypto.SHA256, sum[:]) // a valid key has no errors
			body, _ := json.Marshal(map[string]string{"Type": "Notification", "MessageId": id, "TopicArn": snsTopicARN, "Message": event,
				"Timestamp": now, "SignatureVersion": "2", "Signature": base64.StdEncoding.EncodeToString(signature),
				"SigningCertURL": snsCertificate})
			return hookRequest{t.path, http.Header{"Content-Type": {"text/plain; charset=UTF-8"}, "X-Amz-Sns-Message-Type": {"Notification"}}, body}
		}}
}
