package sender

import (
	"fmt"
	"time"
)

// MostWebhook is the largest body of a webhook that is read. SendGrid sends up to 768 KiB.
const MostWebhook = 1 << 20

// FailuresOnly is a Receiver of an account that reports failures only. The absence of
// reports means nothing then: second attempts do not wait for them, and the account does
// not report acceptance (Capabilities.Events).
type FailuresOnly interface {
	Receiver
	FailuresOnly()
}

// How long before a request its signature may have been made. Carriers send a request
// again for up to a day, some of them with the first signature. Within that time a
// replay changes nothing, since each report is stored once.
const (
	oldestSignature = 72 * time.Hour
	clockSkew       = 5 * time.Minute
)

// CheckTime returns ErrReplayed for a signature that was made more than 72 hours before
// the request or more than 5 minutes after it.
func CheckTime(signed, at time.Time) error {
	if age := at.Sub(signed); age > oldestSignature || age < -clockSkew {
		return fmt.Errorf("signed at %s: %w", signed.UTC().Format(time.RFC3339), ErrReplayed)
	}
	return nil
}

// CheckSize returns ErrUnreadable for a body that is too large or empty.
func CheckSize(body []byte) error {
	if len(body) == 0 || len(body) > MostWebhook {
		return fmt.Errorf("the body has %d bytes: %w", len(body), ErrUnreadable)
	}
	return nil
}
