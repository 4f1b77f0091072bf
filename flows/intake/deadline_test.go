package intake

import (
	"context"
	"errors"
	"testing"

	"lemma/flows/enrollment"
)

// The evaluation of conditions makes no call that returns the context's error.
func TestConditionsEndWithTheirRequest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := &Trigger{Name: "x", source: enrollment.FromEvent}
	tx := &transaction{listeners: map[string][]listener{"x": {{use: UseTrigger}, {use: UseTrigger}, {use: UseTrigger}}}}
	if _, err := tx.candidates(&endsLater{t.Context(), 2}, 0, o); !errors.Is(err, context.Canceled) {
		t.Errorf("candidates of the third flow of an event: %v", err)
	}
	if _, err := tx.candidates(ctx, 0, o); !errors.Is(err, context.Canceled) {
		t.Errorf("candidates: %v", err)
	}
	if err := tx.react(ctx, activeEnrollment{}, o, &Recorded{}, &woken{}); !errors.Is(err, context.Canceled) {
		t.Errorf("react: %v", err)
	}
}

// endsLater is a context that has ended when it is asked once more than left.
type endsLater struct {
	context.Context
	left int
}

func (c *endsLater) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}
