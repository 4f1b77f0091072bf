package api

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"lemma"
	"lemma/api/idempotency"
	"lemma/client"
)

// once carries out a call at most once per Idempotency-Key. Calls that write nothing,
// dry runs too, are carried out each time.
func (s *server) once(ctx context.Context, e endpoint, c *call) reply {
	key := c.keyOf(e)
	if key == "" {
		c.newID, c.attempt = lemma.NewID(), 1
		answer, _ := s.perform(ctx, e, c)
		return answer
	}
	held, earlier, err := s.claim(ctx, c, key)
	if errors.Is(err, idempotency.ErrInProgress) && e.do.repeatable != nil && e.do.repeatable(c) {
		c.newID, c.attempt = lemma.NewID(), 1
		answer, _ := s.perform(ctx, e, c)
		return answer
	}
	if err != nil {
		return s.fail(c.request, err)
	}
	if earlier != nil {
		infoOf(ctx).replayed = true
		return reply{earlier.Status, earlier.Header, earlier.Body}.replay(requestID(c.request.Context()))
	}
	c.newID, c.attempt, c.held = held.ID(), held.Attempt, held
	ctx, done := s.answers.Hold(ctx, *held)
	defer done()
	return s.finish(ctx, held, e, c)
}

// keyOf is the Idempotency-Key under which the answer of a call is kept; empty without one.
func (c *call) keyOf(e endpoint) string {
	if e.method != http.MethodPost || !e.do.writes || e.do.uploads || c.dryRun() {
		return ""
	}
	return c.request.Header.Get("Idempotency-Key")
}

// claim takes the key in a slot of the database, for events too.
func (s *server) claim(ctx context.Context, c *call, key string) (*idempotency.Claim, *idempotency.Answer, error) {
	leave, err := s.enter(ctx, database, c)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	return s.answers.Claim(ctx, c.workspace(), key, fingerprint(c))
}

// finish carries out the call and keeps the answer before it is returned, so that each
// returned answer can be replayed. A 5xx, a 429 and an answer with Retry-After are not kept,
// and the key is released for the next attempt.
func (s *server) finish(ctx context.Context, held *idempotency.Claim, e endpoint, c *call) reply {
	done := false
	defer func() {
		if !done { // after a panic, too
			s.release(ctx, held, c)
		}
	}()
	answer, kept := s.perform(ctx, e, c)
	if answer.status >= http.StatusInternalServerError || answer.status == http.StatusTooManyRequests || answer.header["Retry-After"] != "" {
		if errors.Is(context.Cause(ctx), idempotency.ErrInProgress) {
			return s.fail(c.request, idempotency.ErrInProgress)
		}
		return answer
	}
	if err := s.keep(ctx, held, c, kept); err != nil {
		return s.fail(c.request, err)
	}
	done = true
	return answer
}

// keep keeps an answer, or in place of it that there is no room for it.
func (s *server) keep(ctx context.Context, held *idempotency.Claim, c *call, kept reply) error {
	answer := idempotency.Answer{Status: kept.status, Header: kept.header, Body: kept.body}.WithExcess(len(c.body))
	room, err := s.answers.HasRoom(ctx, c.workspace(), answer)
	if err != nil {
		return err
	}
	if !room {
		s.Refused.refused("workspace_kept")
		kept = s.fail(c.request, notKept)
		answer = idempotency.Answer{Status: kept.status, Header: kept.header, Body: kept.body}
	}
	return s.answers.Keep(ctx, *held, answer)
}

func (s *server) release(ctx context.Context, held *idempotency.Claim, c *call) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.answers.Release(ctx, *held); err != nil {
		s.Log.ErrorContext(ctx, "idempotency key not released; it frees itself", "request_id", requestID(c.request.Context()), "error", err)
	}
}

// fingerprint distinguishes requests under the same key. It includes the API key, since
// another one may lack scopes that the handler checks.
func fingerprint(c *call) []byte {
	h := sha256.New()
	for _, part := range [][]byte{c.key.ID[:], []byte(c.request.Method), []byte(c.request.URL.Path), []byte(c.request.URL.RawQuery), c.body} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part)))
		h.Write(part)
	}
	return h.Sum(nil)
}

// replay returns a kept answer for another request, whose id a problem contains.
func (r reply) replay(request string) reply {
	var p client.Problem
	if r.status < http.StatusBadRequest || json.Unmarshal(r.body, &p) != nil {
		return r
	}
	p.RequestID = request
	r.body = encode(p)
	return r
}

// Answers for a key that another request has.
var (
	inProgress = &refusal{status: http.StatusConflict, code: "idempotency_in_progress",
		detail: "the same request is in progress; repeat it to receive its answer", header: map[string]string{"Retry-After": "1"}}
	notKept = &refusal{status: http.StatusConflict, code: "answer_not_kept",
		detail: "the request was carried out; its answer was not kept, since the workspace has kept as many large ones as it may; " +
			"read the object"}
	keyReused = &refusal{status: http.StatusUnprocessableEntity, code: "idempotency_key_reused",
		detail: "this Idempotency-Key was used for another request, or by another API key; take a new one",
		fields: []lemma.Field{{Pointer: "Idempotency-Key:", Code: "idempotency_key_reused", Detail: "was used for another request"}}}
)
