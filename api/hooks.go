package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"lemma"
	"lemma/hooks"
)

// hookTime bounds the work for one webhook. Carriers wait some seconds.
const hookTime = 10 * time.Second

// hookRefusals are the answers to webhooks that change nothing, by the reason.
var hookRefusals = map[string]refusal{
	"unknown": {status: http.StatusNotFound, code: "not_found", detail: "there is no such webhook URL"},
	"not_configured": {status: http.StatusNotFound, code: "not_found",
		detail: "the provider receives no webhooks: it lacks the secret or setting that checks them"},
	"too_large":  {status: http.StatusRequestEntityTooLarge, code: "too_large", detail: "the body has more than 1 MiB"},
	"forged":     {status: http.StatusUnauthorized, code: "webhook_forged", detail: "the signature is missing or wrong"},
	"replayed":   {status: http.StatusUnauthorized, code: "webhook_replayed", detail: "the signature is too old or from the future"},
	"foreign":    {status: http.StatusBadRequest, code: "webhook_foreign", detail: "the request is for another account"},
	"unreadable": {status: http.StatusBadRequest, code: "webhook_unreadable", detail: "the body is not in the format of the carrier"},
}

// receiveHook answers 200 without a body when all events of the request are stored.
func (s *server) receiveHook(w http.ResponseWriter, r *http.Request) {
	if s.Hooks == nil {
		s.noRoute(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), hookTime)
	defer cancel()
	err := s.Hooks.Receive(r.WithContext(ctx), chi.URLParam(r, "carrier"), chi.URLParam(r, "provider"))
	if err == nil {
		w.WriteHeader(http.StatusOK)
		return
	}
	if refused, known := hookRefusals[hooks.Refusal(err)]; known {
		if fault, ok := errors.AsType[*lemma.Error](err); ok {
			refused.fields = fault.Fields
		}
		err = &refused
	}
	s.fail(r, err).write(w)
}
