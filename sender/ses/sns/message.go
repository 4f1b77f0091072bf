// Package sns reads requests of Amazon SNS. It guarantees that a message that Open
// returns was sent by the configured topic.
//
//   - The topic of a message must be the configured one. A signature alone proves only
//     that some topic of AWS has sent it.
//   - The certificate is fetched over HTTPS from the host of Amazon SNS in the topic's
//     region and nowhere else. It must be valid now, for a name of Amazon SNS, and its
//     chain must end at a trusted root. Intermediate certificates that it lacks are
//     fetched from the address in the certificate.
//   - Signature versions 1 (RSA with SHA-1) and 2 (RSA with SHA-256) are checked over
//     the fields that AWS lists for each type of message.
//   - A subscription is confirmed only for the topic, and only at that host.
//
// Certificates are kept for a day. Their number is bounded, and so are the failures that
// are remembered, the fetches of a second, and the bytes and time of each fetch. No
// redirect is followed, and package dial opens the connections.
//
// Raw message delivery removes the signature, so it cannot be used.
package sns

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // Signature version 1, which topics have by default, uses SHA-1.
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma/sender"
)

// The types of messages.
const (
	Notification   = "Notification"
	Subscription   = "SubscriptionConfirmation"
	Unsubscription = "UnsubscribeConfirmation"
)

// Message is a message of Amazon SNS, as it is sent to an HTTPS endpoint.
type Message struct {
	Type             string    `json:"Type"`
	MessageID        string    `json:"MessageId"`
	TopicARN         string    `json:"TopicArn"`
	Subject          *string   `json:"Subject"`
	Message          string    `json:"Message"`
	Timestamp        string    `json:"Timestamp"`
	Token            string    `json:"Token"`
	SubscribeURL     string    `json:"SubscribeURL"`
	SignatureVersion string    `json:"SignatureVersion"`
	Signature        string    `json:"Signature"`
	SigningCertURL   string    `json:"SigningCertURL"`
	SentAt           time.Time `json:"-"` // Timestamp
}

// Open reads a message and checks that the topic has sent it. The errors are those of
// sender.Receiver. Any other error means that the certificate cannot be had now.
func (c *Client) Open(ctx context.Context, topic Topic, body []byte, at time.Time) (*Message, error) {
	if err := sender.CheckSize(body); err != nil {
		return nil, err
	}
	m := &Message{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, fmt.Errorf("not a message of Amazon SNS: %w", sender.ErrUnreadable)
	}
	if m.Signature == "" {
		return nil, fmt.Errorf("without a signature, as with raw message delivery: %w", sender.ErrForged)
	}
	if m.TopicARN != topic.arn {
		return nil, fmt.Errorf("of another topic: %w", sender.ErrForeign)
	}
	if err := c.verify(ctx, topic, m); err != nil {
		return nil, err
	}
	var err error
	if m.SentAt, err = time.Parse(time.RFC3339, m.Timestamp); err != nil {
		return nil, fmt.Errorf("the time cannot be read: %w", sender.ErrUnreadable)
	}
	return m, sender.CheckTime(m.SentAt, at)
}

func (c *Client) verify(ctx context.Context, topic Topic, m *Message) error {
	text := m.signed()
	if text == "" || m.SignatureVersion != "1" && m.SignatureVersion != "2" {
		return fmt.Errorf("of another type or signature version: %w", sender.ErrForged)
	}
	signature, err := base64.StdEncoding.DecodeString(m.Signature)
	if err != nil {
		return fmt.Errorf("the signature is not base64: %w", sender.ErrForged)
	}
	if !topic.hasCertificate(m.SigningCertURL) {
		return fmt.Errorf("the certificate is not at Amazon SNS in the region of the topic: %w", sender.ErrForged)
	}
	key, err := c.key(ctx, topic, m.SigningCertURL)
	if err != nil {
		return err
	}
	if check(key, m.SignatureVersion, text, signature) != nil {
		return sender.ErrForged
	}
	return nil
}

func check(key *rsa.PublicKey, version, text string, signature []byte) error {
	if version == "1" {
		sum := sha1.Sum([]byte(text)) //nolint:gosec // Signature version 1 is SHA-1.
		return rsa.VerifyPKCS1v15(key, crypto.SHA1, sum[:], signature)
	}
	sum := sha256.Sum256([]byte(text))
	return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature)
}

// signed is the text that the signature covers; empty for other types.
func (m *Message) signed() string {
	var b strings.Builder
	add := func(name, value string) { b.WriteString(name + "\n" + value + "\n") }
	add("Message", m.Message)
	add("MessageId", m.MessageID)
	switch m.Type {
	case Notification:
		if m.Subject != nil {
			add("Subject", *m.Subject)
		}
	case Subscription, Unsubscription:
		add("SubscribeURL", m.SubscribeURL)
	default:
		return ""
	}
	add("Timestamp", m.Timestamp)
	if m.Type != Notification {
		add("Token", m.Token)
	}
	add("TopicArn", m.TopicARN)
	add("Type", m.Type)
	return b.String()
}

// Topic is a topic of Amazon SNS.
type Topic struct {
	Workspace           uuid.UUID // whose fetches of certificates are bounded
	arn, region, domain string
}

var (
	topicForm = regexp.MustCompile(`^arn:(aws|aws-cn|aws-us-gov):sns:([a-z]{2,4}(?:-[a-z]{2,12}){1,3}-[0-9]{1,2}):[0-9]{12}:` +
		`[A-Za-z0-9_-]{1,256}$`)
	certificatePath = regexp.MustCompile(`^/SimpleNotificationService-[A-Za-z0-9]{16,64}\.pem$`)
)

// ParseTopic reads the ARN of a topic. FIFO topics have no HTTPS endpoints.
func ParseTopic(arn string) (Topic, bool) {
	parts := topicForm.FindStringSubmatch(arn)
	if parts == nil {
		return Topic{}, false
	}
	t := Topic{arn: arn, region: parts[2], domain: "amazonaws.com"}
	if parts[1] == "aws-cn" {
		t.domain = "amazonaws.com.cn"
	}
	return t, true
}

// host is the host of Amazon SNS in the region of a topic.
func (t Topic) host() string { return "sns." + t.region + "." + t.domain }

// names are the names that the certificate of the region may have. Some partitions and
// regions have their own.
func (t Topic) names() []string {
	return []string{"sns.amazonaws.com", t.host(), "sns-signing." + t.region + "." + t.domain,
		"sns-" + t.region + "." + t.domain, "sns-us-gov-west-1.amazonaws.com"}
}

// at parses a URL of the host: https, without port, user and fragment.
func (t Topic) at(text string) (*url.URL, bool) {
	u, err := url.Parse(text)
	return u, err == nil && len(text) <= 2000 && u.Scheme == "https" && u.Host == t.host() && u.User == nil && u.Opaque == "" &&
		u.Fragment == ""
}

// hasCertificate reports whether a text is the URL of a certificate, as Amazon SNS writes it: what is
// fetched is kept by the text, so that each certificate has one.
func (t Topic) hasCertificate(text string) bool {
	path, ok := strings.CutPrefix(text, "https://"+t.host())
	return ok && certificatePath.MatchString(path)
}

// confirms reports that a URL confirms a subscription to the topic, and does nothing
// else.
func (t Topic) confirms(text string) bool {
	u, ok := t.at(text)
	if !ok || strings.Trim(u.EscapedPath(), "/") != "" {
		return false
	}
	q, err := url.ParseQuery(u.RawQuery)
	return err == nil && len(q["Action"]) == 1 && q.Get("Action") == "ConfirmSubscription" &&
		len(q["TopicArn"]) == 1 && q.Get("TopicArn") == t.arn && q.Get("Token") != ""
}
