package redact

import (
	"errors"

	"lemma"
)

// Error is an error without the secrets in its text, and in the fields of the *lemma.Error
// that it may contain. errors.Is finds the same errors in it.
func (s *Secrets) Error(err error) error {
	if err == nil || s == nil {
		return err
	}
	text := err.Error()
	if s.Text(text) == text {
		return err
	}
	return &cleaned{s, err}
}

// cleaned is an error whose text has a secret.
type cleaned struct {
	secrets *Secrets
	err     error
}

// Error is the text without the secrets.
func (c *cleaned) Error() string { return c.secrets.Text(c.err.Error()) }

// Is is part of errors.Is. There is no Unwrap: the text of the error within has the secret.
func (c *cleaned) Is(target error) bool { return errors.Is(c.err, target) }

// As is part of errors.As. Only a *lemma.Error can be had, without the secrets.
func (c *cleaned) As(target any) bool {
	to, ok := target.(**lemma.Error)
	if !ok {
		return false
	}
	found, ok := errors.AsType[*lemma.Error](c.err)
	if !ok {
		return false
	}
	clean := *found
	clean.Message, clean.Fields, clean.Cause = c.secrets.Text(found.Message), nil, c.secrets.Error(found.Cause)
	for _, f := range found.Fields {
		f.Pointer, f.Detail = c.secrets.Text(f.Pointer), c.secrets.Text(f.Detail)
		clean.Fields = append(clean.Fields, f)
	}
	*to = &clean
	return true
}
