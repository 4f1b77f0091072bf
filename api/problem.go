package api

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strings"

	"lemma"
	"lemma/api/idempotency"
	"lemma/api/strict"
	"lemma/audience"
	"lemma/client"
	"lemma/pgerr"
)

// statuses maps kinds of errors to statuses.
var statuses = map[lemma.Kind]int{
	lemma.Invalid:         http.StatusUnprocessableEntity, // 400 when all faults are outside of the body
	lemma.Unauthenticated: http.StatusUnauthorized,
	lemma.Forbidden:       http.StatusForbidden,
	lemma.NotFound:        http.StatusNotFound,
	lemma.WrongStatus:     http.StatusConflict,
	lemma.Conflict:        http.StatusConflict,
	lemma.Stale:           http.StatusPreconditionFailed,
	lemma.TooLarge:        http.StatusRequestEntityTooLarge,
	lemma.RateLimited:     http.StatusTooManyRequests,
	lemma.Unavailable:     http.StatusServiceUnavailable,
	lemma.Internal:        http.StatusInternalServerError,
}

// refusal is an error of HTTP, which no domain package returns.
type refusal struct {
	status int
	code   string
	detail string
	header map[string]string
	fields []lemma.Field
}

func (r *refusal) Error() string { return r.detail }

// fail converts an error to the answer. Internal errors are logged here, once, and their
// details are not shown.
func (s *server) fail(r *http.Request, err error) reply {
	p, header := explain(err)
	p.RequestID = requestID(r.Context())
	switch {
	case errors.Is(err, context.Canceled): // the client ended the request
	case p.Code == audience.CodeOverloaded, p.Code == codeNotSent: // counted by a metric
	case lemma.KindOf(err) == lemma.Unavailable: // such as a data source of a workspace, which is no failure of the server
		s.logFailure(r, slog.LevelInfo, "request not carried out", p, err)
	case p.Status >= http.StatusInternalServerError:
		s.logFailure(r, slog.LevelError, "request failed", p, err)
	}
	answer := reply{status: p.Status, header: header, body: encode(p)}
	answer.header["Content-Type"] = "application/problem+json"
	if p.Status < http.StatusInternalServerError && infoOf(r.Context()).key == "" {
		answer.header["Connection"] = "close" // without a key no connection is kept for further requests
	}
	return answer
}

func (s *server) logFailure(r *http.Request, level slog.Level, message string, p client.Problem, err error) {
	s.Log.Log(r.Context(), level, message, "request_id", p.RequestID, "status", p.Status, "code", p.Code, "error", err)
}

func explain(err error) (client.Problem, map[string]string) {
	own := refusalOf(err)
	var domain *lemma.Error
	switch {
	case own != nil:
		header := map[string]string{}
		maps.Copy(header, own.header)
		return newProblem(own.status, own.code, own.detail, own.fields...), header
	case errors.As(err, &domain) && domain.Kind != lemma.Internal:
		return explainDomain(domain)
	case errors.Is(err, context.DeadlineExceeded):
		return newProblem(http.StatusServiceUnavailable, "timeout", "the request took too long and was given up"),
			map[string]string{"Retry-After": "5"}
	case errors.Is(err, context.Canceled):
		return newProblem(http.StatusServiceUnavailable, "hung_up", "the caller hung up before there was an answer"), map[string]string{}
	case pgerr.Away(err):
		return newProblem(http.StatusServiceUnavailable, "database_unavailable",
				"the database does not answer now, and whether the request was carried out is unknown; repeat it under the same Idempotency-Key"),
			map[string]string{"Retry-After": "2"}
	}
	return newProblem(http.StatusInternalServerError, "internal", "something went wrong on our side; the log has more under the request_id"),
		map[string]string{}
}

// refusalOf returns the error of HTTP in err, or nil.
func refusalOf(err error) *refusal {
	var own *refusal
	var text *strict.Malformed
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &text):
		return &refusal{status: http.StatusBadRequest, code: text.Code, detail: text.Detail,
			fields: []lemma.Field{{Code: text.Code, Detail: text.Detail, Line: text.Line, Column: text.Column}}}
	case errors.Is(err, idempotency.ErrInProgress):
		return inProgress
	case errors.Is(err, idempotency.ErrReused):
		return keyReused
	}
	return nil
}

func explainDomain(e *lemma.Error) (client.Problem, map[string]string) {
	status, known := statuses[e.Kind]
	if !known {
		status = http.StatusInternalServerError
	}
	if e.Kind == lemma.Invalid && outsideBody(e.Fields) {
		status = http.StatusBadRequest
	}
	code := e.Code
	if code == "" {
		code = string(e.Kind)
	}
	p := newProblem(status, code, e.Message, e.Fields...)
	if e.Kind == lemma.WrongStatus {
		p.CurrentStatus, p.AllowedActions = e.Status, append([]string{}, e.Allowed...)
	}
	return p, headersFor(status)
}

func headersFor(status int) map[string]string {
	switch status {
	case http.StatusUnauthorized:
		return map[string]string{"WWW-Authenticate": `Bearer realm="lemma", error="invalid_token"`}
	case http.StatusTooManyRequests:
		return map[string]string{"Retry-After": "6"}
	case http.StatusServiceUnavailable:
		return map[string]string{"Retry-After": "5"}
	}
	return map[string]string{}
}

// newProblem mentions in the detail that not all faults are listed.
func newProblem(status int, code, detail string, faults ...lemma.Field) client.Problem {
	p := client.Problem{Type: "urn:lemma:problem:" + code, Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
	n := listed(faults, strict.MaxFaults, maxFaultBytes)
	for _, f := range faults[:n] {
		p.Errors = append(p.Errors, client.Fault(f))
	}
	if len(faults) > n {
		p.Detail += "; " + strict.NotAll
	}
	return p
}

// maxFaultBytes is how many bytes of pointers and details an answer lists, after the first fault:
// the path of a deep value has 60 KiB.
const maxFaultBytes = 32 << 10

// listed is how many of the first faults an answer lists.
func listed(faults []lemma.Field, most, bytes int) (n int) {
	for _, f := range faults[:min(len(faults), most)] {
		if bytes -= len(f.Pointer) + len(f.Detail); bytes < 0 && n > 0 {
			break
		}
		n++
	}
	return n
}

// outsideBody reports whether every fault is one of a query parameter or header.
func outsideBody(fields []lemma.Field) bool {
	for _, f := range fields {
		if f.Pointer == "" || strings.HasPrefix(f.Pointer, "/") {
			return false
		}
	}
	return len(fields) > 0
}

// blame adds a pointer to an error without one, such as that of a data source, which is a
// fault of the field with its id.
func blame(err error, pointer string) error {
	var e *lemma.Error
	if !errors.As(err, &e) || len(e.Fields) > 0 || (e.Kind != lemma.Invalid && e.Kind != lemma.TooLarge) {
		return err
	}
	named := *e
	code := named.Code
	if code == "" {
		code = string(named.Kind)
	}
	named.Fields = []lemma.Field{{Pointer: pointer, Code: code, Detail: named.Message}}
	return &named
}

// unknownID is the fault of a field with an id that is not in this workspace.
func unknownID(pointer, what string) *lemma.Error {
	return lemma.Fault(pointer, "unknown_id", "there is no such %s in this workspace", what)
}
