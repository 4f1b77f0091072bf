package query

import (
	"context"

	"github.com/google/uuid"
)

// What the tests of this package use of its internals.

const (
	Explained        = explained
	SelectEnrollment = selectEnrollment
)

func (r Refusal) Key() uuid.UUID { return r.key }

func (r *Reader) CountRefusals(ctx context.Context, ws, flow uuid.UUID) (map[string]int64, error) {
	return r.countRefusals(ctx, ws, flow)
}

func (r *Reader) ReadPoll(ctx context.Context, ws, flow uuid.UUID) (*AudiencePoll, error) {
	return r.readPoll(ctx, ws, flow)
}
