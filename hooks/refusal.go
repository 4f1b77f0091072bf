package hooks

import (
	"context"
	"errors"

	"lemma"
	"lemma/flows/admission"
	"lemma/sender"
)

// Refusal is the label of a refused request in metrics; empty for no error and for another
// failure of the server.
func Refusal(err error) (label string) {
	switch {
	case errors.Is(err, sender.ErrForged):
		return "forged"
	case errors.Is(err, sender.ErrReplayed):
		return "replayed"
	case errors.Is(err, sender.ErrUnreadable):
		return "unreadable"
	case errors.Is(err, sender.ErrForeign):
		return "foreign"
	case errors.Is(err, sender.ErrNoReceiver):
		return "not_configured"
	case errors.Is(err, ErrTooLarge):
		return "too_large"
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case errors.Is(err, errUnverified):
		return "unverified"
	case admission.IsOverloaded(err):
		return "overloaded"
	}
	return ""
}

// errUnverified means that the check of a signature failed, for example since the
// carrier's certificate could not be fetched.
var errUnverified = errors.New("the signature cannot be checked now")

// unverified makes an error of a receiver that is not a refusal one that asks the
// carrier to send the request again.
func unverified(err error) error {
	if Refusal(err) != "" || errors.Is(err, context.Canceled) {
		return err
	}
	return &lemma.Error{Kind: lemma.Unavailable, Code: "webhook_unverified",
		Message: "the signature cannot be checked now; send the request again", Cause: errors.Join(errUnverified, err)}
}
