package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// ProviderTestRequest is a test message: a template with its data, or a subject and a
// text.
type ProviderTestRequest struct {
	To         string          `json:"to"`                // an address of the provider's channel
	From       *Sender         `json:"from,omitempty"`    // required for email
	Subject    string          `json:"subject,omitempty"` // of an email; the title of a push
	Text       string          `json:"text,omitempty"`
	TemplateID string          `json:"template_id,omitempty"`
	Version    int             `json:"version,omitempty"` // of the template; 0: the newest
	Data       json.RawMessage `json:"data,omitempty"`    // an object: the variables of the template
}

// Sender is the sender of an email.
type Sender struct {
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
}

// ProviderTest is the result of a test message, with the conversation.
type ProviderTest struct {
	Outcome           string             `json:"outcome"` // accepted, rejected, not_accepted, unknown, not_called
	Reason            *string            `json:"reason"`
	FailureOf         *string            `json:"failure_of"` // provider, message
	Definite          bool               `json:"definite"`   // waiting does not help
	Code              *int               `json:"code"`
	Detail            *string            `json:"detail"`
	CarrierID         *string            `json:"carrier_id"`
	RetryAfterSeconds *float64           `json:"retry_after_seconds"`
	Effect            string             `json:"effect"` // what the outcome means for campaigns and flows
	DurationMs        float64            `json:"duration_ms"`
	Conversation      []ProviderTestStep `json:"conversation"` // without secrets
	Truncated         bool               `json:"truncated"`
}

// ProviderTestStep is a part of the conversation.
type ProviderTestStep struct {
	OffsetMs float64          `json:"offset_ms"` // since the begin of the test
	Type     string           `json:"type"`      // connected, secured, sent, received, failed
	Part     *string          `json:"part"`      // line, header, body
	Text     *string          `json:"text"`
	Bytes    *int             `json:"bytes"` // the size of a body
	TLS      *ProviderTestTLS `json:"tls"`   // of secured
}

// ProviderTestTLS describes an encrypted connection.
type ProviderTestTLS struct {
	Version              string     `json:"version"`
	Cipher               string     `json:"cipher"`
	Protocol             *string    `json:"protocol"`
	CertificateNames     []string   `json:"certificate_names"`
	CertificateIssuer    *string    `json:"certificate_issuer"`
	CertificateExpiresAt *time.Time `json:"certificate_expires_at"`
}

// TestProvider sends one message over a provider, at once, and returns the conversation
// with its server. It may take 30 seconds. The message is no notification.
func (c *Client) TestProvider(ctx context.Context, provider string, m ProviderTestRequest, options ...CallOption) (ProviderTest, error) {
	return call[ProviderTest](ctx, c, m, options, http.MethodPost, "/v1/providers/%s/test", provider)
}
