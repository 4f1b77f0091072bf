package redact

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma/processors/processorstest"
)

// Secrets are removed from long texts on the processors that are left to others, and from short ones at once.
func TestLongTextsWaitForAProcessor(t *testing.T) {
	t.Parallel()
	s := Of([]byte(`{"password":"correct horse"}`))
	account := uuid.UUID(s.key[:16])
	text := "correct horse" + strings.Repeat("x", shortText)
	if err := processorstest.Waits(t, removing, account, func() error { s.Text(text); return nil }); err != nil {
		t.Error(err)
	}
	leave := processorstest.Take(removing, account)
	defer leave()
	if got := s.Text(text[:shortText]); strings.Contains(got, "horse") {
		t.Error(got)
	}
}
