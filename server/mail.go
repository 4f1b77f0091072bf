package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"lemma/hooks"
	"lemma/lmtp"
)

// serveMail receives mails about bounces, if LMTP has an address, until ctx ends.
func (s *Server) serveMail(ctx context.Context) error {
	if s.cfg.LMTPListen == "" {
		<-ctx.Done()
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.LMTPListen)
	if err != nil {
		return fmt.Errorf("listen on %s for LMTP: %w", s.cfg.LMTPListen, err)
	}
	mails := lmtp.New(s.receiveMail, s.log)
	failed := make(chan error, 1)
	go func() { failed <- mails.Serve(l) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return errors.Join(mails.Shutdown(stop), err)
}

// receiveMail stores what a mail to a provider reports. A mail that reports nothing, or
// is refused, is handled: the mail server must not send it again, or back.
func (s *Server) receiveMail(ctx context.Context, provider string, mail []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/hooks/smtp/"+provider, bytes.NewReader(mail))
	if err != nil {
		return err
	}
	err = s.Hooks.Receive(r, "smtp", provider)
	return mailError(err)
}

// mailError is the answer to a mail whose reports could not be stored.
func mailError(err error) error {
	switch hooks.Refusal(err) {
	case "forged", "replayed", "unreadable", "foreign", "too_large":
		return nil
	case "unknown", "not_configured":
		return lmtp.ErrNoProvider
	}
	return err
}
