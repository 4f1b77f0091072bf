package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Problem is the server's error (RFC 9457). Methods return it, so use errors.As.
type Problem struct {
	Type           string   `json:"type"`
	Title          string   `json:"title"`
	Status         int      `json:"status"`
	Code           string   `json:"code"` // for programs, such as invalid_status
	Detail         string   `json:"detail"`
	RequestID      string   `json:"request_id"` // for reports
	Errors         []Fault  `json:"errors,omitempty"`
	CurrentStatus  string   `json:"current_status,omitempty"` // with invalid_status: the status now
	AllowedActions []string `json:"allowed_actions,omitzero"` // with invalid_status: those that the status allows
}

// Fault is a fault of one field of a request.
type Fault struct {
	Pointer string `json:"pointer"` // RFC 6901 into the body, ?name for a query parameter, Name: for a header
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Line    int    `json:"line,omitempty"` // from 1; only for texts with lines
	Column  int    `json:"column,omitempty"`
}

func (f Fault) String() string {
	place := f.Pointer
	if place == "" {
		place = "the body"
	}
	if f.Line > 0 {
		place += fmt.Sprintf(" line %d column %d", f.Line, f.Column)
	}
	return place + ": " + f.Detail
}

// Error names every wrong field.
func (p *Problem) Error() string {
	var text strings.Builder
	text.WriteString(p.Detail)
	for _, f := range p.Errors {
		text.WriteString("\n  " + f.String())
	}
	if len(p.AllowedActions) > 0 {
		text.WriteString("; allowed: " + strings.Join(p.AllowedActions, ", "))
	}
	if p.Status >= http.StatusInternalServerError && p.RequestID != "" {
		text.WriteString(" (" + p.RequestID + ")")
	}
	return text.String()
}

// passing reports whether the same request may succeed later.
func (p *Problem) passing() bool {
	switch p.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return p.Code == "idempotency_in_progress" // an earlier try is still in progress
}

// CodeOf is the code of the Problem in an error; empty when there is none.
func CodeOf(err error) string {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Code
	}
	return ""
}

// problemOf reads a Problem. Any other body, such as the page of a proxy, becomes one with
// the code http.
func problemOf(status int, header http.Header, raw []byte) *Problem {
	p := &Problem{}
	if err := json.Unmarshal(raw, p); err != nil || p.Code == "" {
		p = &Problem{Code: "http", Detail: fmt.Sprintf("the server answered %d %s without a problem of Lemma", status, http.StatusText(status))}
	}
	p.Status = status
	if p.RequestID == "" {
		p.RequestID = header.Get("X-Request-Id")
	}
	return p
}
