package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// The test of a provider prints the conversation and the result.
func TestProvidersFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	url, key := strings.TrimPrefix(env[0], "LEMMA_URL="), strings.TrimPrefix(env[1], "LEMMA_API_KEY=")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/providers",
		strings.NewReader(`{"name": "mail", "kind": "smtp", "config": {"host": "mail.invalid", "port": 587}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var made struct{ ID string }
	if err := json.NewDecoder(answer.Body).Decode(&made); err != nil || made.ID == "" {
		t.Fatal(answer.Status, err)
	}
	test := []string{"providers", "test", made.ID, "--to", "ada@example.com", "--from", "news@example.com"}
	prints(t, env, `(?s)ms  failed +the host name cannot be resolved\n.*outcome +not_accepted\n.*failure of +provider\n`+
		`.*effect +The provider fails`,
		test...)
	prints(t, env, `"conversation": \[`, append(test, "--json")...)
}
