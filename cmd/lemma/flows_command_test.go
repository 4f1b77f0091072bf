package main

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/client"
	"lemma/pgtest"
	"lemma/secrets"
	"lemma/sender/smtp"
	"lemma/workspaces"
)

// running is the environment of somebody who asks a Lemma that is running, on
// a database of its own. It serves and does not work: nobody moves.
func running(t *testing.T) []string {
	t.Helper()
	pool := pgtest.DB(t)
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNode(defaultConfig(), pool, box, slog.New(slog.DiscardHandler), nodeOptions{Kinds: carriers(smtp.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(n.api)
	t.Cleanup(server.Close)
	ws := pgtest.Workspace(t, pool)
	_, token, err := n.workspaces.CreateKey(t.Context(), ws, workspaces.NewKey{ID: lemma.NewID(), Name: "test", Scopes: []string{workspaces.Admin}})
	if err != nil {
		t.Fatal(err)
	}
	return []string{"LEMMA_URL=" + server.URL, "LEMMA_API_KEY=" + token}
}

// fileOf is a file with a text.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const restful = `{"triggers": [{"type": "event", "event": "signed_up", "condition": "trigger.properties.plan == 'pro'"}], "recurrence": {"policy": "once"},
	"start": "rest", "nodes": {"rest": {"type": "delay", "for": "P1D", "next": "over"}, "over": {"type": "exit"}}}`

// says runs a command and looks for what it has to print.
func says(t *testing.T, env []string, want string, args ...string) string {
	t.Helper()
	out := mustRun(t, env, args...)
	if !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("lemma %s does not say %q: %s", strings.Join(args, " "), want, out)
	}
	return out
}

func TestFlowsFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	says(t, env, `status +draft`, "flows", "create", "Welcome", "-f", fileOf(t, restful))
	says(t, env, `flw_\w+ +Welcome +draft +none`, "flows", "list")
	says(t, env, `version 1 can be published`, "flows", "validate", "Welcome")
	says(t, env, `over none would change \d+ things and enroll nobody`, "flows", "plan", "Welcome")
	says(t, env, `live version +1`, "flows", "publish", "Welcome")
	says(t, env, `enrolled, enrollment enr_`, "events", "send", "c1", "signed_up", "--properties", `{"plan": "pro"}`)
	says(t, env, `version 2 is a draft`, "flows", "draft", "Welcome", "-f", fileOf(t, strings.ReplaceAll(restful, `"rest"`, `"nap"`)))
	says(t, env, `- /nodes/rest`, "flows", "diff", "Welcome")
	says(t, env, `stranded`, "flows", "plan", "Welcome", "2", "--in-flight=move")
	says(t, env, `Publishing version 1`, "flows", "plan", "Welcome", "1")
	says(t, env, `"start": "nap"`, "flows", "versions", "Welcome", "2")
	says(t, env, `version 2 is a draft, written 2 times`, "flows", "draft", "Welcome", "2", "-f", fileOf(t, strings.ReplaceAll(restful, `"rest"`, `"nap"`)))
	says(t, env, `\(entry\) .* moves`, "flows", "plan", "Welcome", "--in-flight=move", "--map", "rest=nap")
	says(t, env, `version 3 is a draft`, "flows", "draft", "Welcome", "-f", fileOf(t, restful))
	says(t, env, `version 3 is gone`, "flows", "discard", "Welcome", "3")
	says(t, env, `(?s)Publishing version 2.*live version +2`, "flows", "publish", "Welcome", "--in-flight=stay")
	says(t, env, `live version +1`, "flows", "rollback", "Welcome", "1")
	says(t, env, `status +paused`, "flows", "pause", "Welcome")
	says(t, env, `refused as paused`, "events", "send", "c2", "signed_up", "--properties", `{"plan": "pro"}`)
	says(t, env, `status +live`, "flows", "resume", "Welcome", "--spread=0s")
	says(t, env, `status +paused`, "flows", "pause", "Welcome")
	says(t, env, `status +live`, "flows", "resume", "Welcome", "--spread=PT10M")
	says(t, env, `(?s)rolled_back.*published`, "flows", "history", "Welcome")
	says(t, env, `(?s)enrolled +1.*paused 1.*MESSAGES`, "flows", "counts", "Welcome", "--version=1")
	says(t, env, `(?s)version +2\s+enrolled +0`, "flows", "counts", "Welcome", "2")
	says(t, env, `c2 +paused`, "flows", "refusals", "Welcome")
	says(t, env, `paused`, "flows", "explain", "Welcome", "c2")
	says(t, env, `(?s)rest +delay +waiting.*ends as completed`, "flows", "simulate", "Welcome", "c9", "--version=1", "--at=2027-01-02T15:04:05Z")
	says(t, env, `would not be enrolled: no_trigger`, "flows", "simulate", "Welcome", "c9", "--version=1", "--trigger=audience")
	says(t, env, `status +draining`, "flows", "drain", "Welcome")
	says(t, env, `status +archived`, "flows", "archive", "Welcome")
	var flow struct{ Name, Status string }
	if err := json.Unmarshal([]byte(mustRun(t, env, "flows", "get", "Welcome", "--json")), &flow); err != nil || flow.Status != "archived" {
		t.Errorf("as JSON it is %+v: %v", flow, err)
	}
}

// Two people change a draft, and one of them publishes what she has seen.
func TestDraftsAreGuardedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	mustRun(t, env, "flows", "create", "Welcome", "-f", fileOf(t, restful))
	file := fileOf(t, strings.ReplaceAll(restful, "P1D", "P2D"))
	var plan struct{ ETag string }
	if err := json.Unmarshal([]byte(mustRun(t, env, "flows", "plan", "Welcome", "--json")), &plan); err != nil || plan.ETag == "" {
		t.Fatalf("%+v: %v", plan, err)
	}
	says(t, env, `--if-match=`+plan.ETag+` lets nothing else`, "flows", "plan", "Welcome")
	says(t, env, `\(ETag 2\)`, "flows", "draft", "Welcome", "1", "-f", file, "--if-match=1")
	says(t, env, `"etag": "3"`, "flows", "draft", "Welcome", "1", "-f", file, "--if-match", `"2"`, "--json")
	for want, args := range map[string][]string{
		"the version has been changed": {"draft", "Welcome", "1", "-f", file, "--if-match=2"},
		"the flow has been changed":    {"publish", "Welcome", "--if-match", plan.ETag},
		"goes with the draft":          {"draft", "Welcome", "-f", file, "--if-match=2"},
	} {
		if out, err := lemmaWith(t, env, append([]string{"flows"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lemma flows %v: %v: %s", args, err, out)
		}
	}
	tag := regexp.MustCompile(`--if-match=(\d+)`).FindStringSubmatch(mustRun(t, env, "flows", "plan", "Welcome"))
	says(t, env, `live version +1`, "flows", "publish", "Welcome", "--if-match="+tag[1])
}

// By a name, the flow is meant that is not archived, whichever is newer.
func TestFlowsOfOneNameFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	says(t, env, `status +draft`, "flows", "create", "Hello", "-f", fileOf(t, restful))
	says(t, env, `status +draft`, "flows", "create", "Welcome", "-f", fileOf(t, restful))
	says(t, env, `status +archived`, "flows", "archive", "Welcome")
	says(t, env, `status +archived`, "flows", "get", "Welcome")
	c, err := client.New(strings.TrimPrefix(env[0], "LEMMA_URL="), strings.TrimPrefix(env[1], "LEMMA_API_KEY="))
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`flw_\w+`).FindString(mustRun(t, env, "flows", "get", "Hello"))
	name := "Welcome"
	if _, err := c.UpdateFlow(t.Context(), id, client.FlowPatch{Name: &name}); err != nil {
		t.Fatal(err)
	}
	says(t, env, `status +draft`, "flows", "get", "Welcome")
	says(t, env, `status +archived`, "flows", "archive", "Welcome")
	if out := mustRun(t, env, "flows", "list", "--status=archived", "--json"); strings.Count(out, `"name": "Welcome"`) != 2 {
		t.Errorf("archived are %s", out)
	}
	if out := mustRun(t, env, "flows", "list", "--status=live", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("live are %s", out)
	}
}

func TestEnrollmentsFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	mustRun(t, env, "flows", "create", "Welcome", "-f", fileOf(t, restful))
	mustRun(t, env, "flows", "publish", "Welcome")
	if out := says(t, env, `would be enrolled`, "enrollments", "create", "Welcome", "c1", "--dry-run"); strings.Contains(out, "enr_") {
		t.Errorf("what is not there has an id: %s", out)
	}
	if out := mustRun(t, env, "enrollments", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("a dry run has enrolled: %s", out)
	}
	id := regexp.MustCompile(`enr_\w+`).FindString(says(t, env, `enrolled`, "enrollments", "create", "Welcome", "c1"))
	says(t, env, `refused as already_enrolled, enrollment `+id, "enrollments", "create", "Welcome", "c1")
	says(t, env, id+` +c1`, "enrollments", "list", "--flow=Welcome", "--profile=c1")
	if out := mustRun(t, env, "enrollments", "list", "--trouble=any", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("somebody is in trouble: %s", out)
	}
	says(t, env, `profile +c1`, "enrollments", "get", id)
	says(t, env, `node +over`, "enrollments", "move", id, "over")
	says(t, env, `because of +manual`, "enrollments", "exit", id, "--note", "asked by phone")
	says(t, env, `(?s)BECAME.*moved.*exited.*asked by phone`, "enrollments", "history", id)
}

func ptr[T any](v T) *T { return &v }

// A cell of the history says what has become of a letter or a webhook.
func TestWhatBecameOfAStep(t *testing.T) {
	t.Parallel()
	next := time.Date(2027, 1, 2, 15, 4, 5, 0, time.UTC)
	for want, s := range map[string]client.EnrollmentStep{
		"":                      {},
		"sent":                  {Notification: &client.NotificationState{Status: "sent"}},
		"skipped: unsubscribed": {Notification: &client.NotificationState{Status: "skipped", Reason: ptr("unsubscribed")}},
		"pending after 4 calls, last 500, next 2027-01-02T15:04:05Z": {Webhook: &client.WebhookFate{State: ptr("pending"), Attempts: 4, Status: ptr(500), Reason: ptr("status"), NextAt: &next}},
		"failed after 9 calls, last timeout":                         {Webhook: &client.WebhookFate{State: ptr("failed"), Attempts: 9, Reason: ptr("timeout")}},
		"pending after 0 calls, next 2027-01-02T15:04:05Z":           {Webhook: &client.WebhookFate{State: ptr("pending"), NextAt: &next}},
		" ": {Webhook: &client.WebhookFate{}},
	} {
		if got := became(s); got != strings.TrimSpace(want) {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

func TestManyEventsFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	var lines strings.Builder
	for range 2 { // 1,200 lines of 600 events are two lots
		for i := range 600 {
			lines.WriteString(`{"profile_key": "c1", "event": "looked", "id": "e` + strings.Repeat("x", i%200) + string(rune('a'+i/200)) + `"}` + "\n")
		}
	}
	broken := []string{"no event", `{"profile_key": "", "event": "looked"}`, `{"profile": "c1"}`, `{"profile_key": 7, "event": "x"}`, `["x"]`, `{"profile_key": "c1"`,
		`{"profile_key": "c1", "event": "x", "occurred_at": "today"}`, `{"profile_key": "c1", "event": "x", "occurred_at": 7}`, `{"profile_key": "c\ud800", "event": "x"}`,
		"{\"profile_key\": \"c\xff\", \"event\": \"x\"}", `{"profile_key": "c1", "event": "x", "properties": []}`, `{"profile_key": "c1", "event": "x"} {}`}
	file := fileOf(t, lines.String()+"\n"+strings.Join(broken, "\n")+"\n")
	out, err := lemmaWith(t, env, "events", "bulk", "-f", file)
	if err == nil || !strings.Contains(err.Error(), "12 lines are not valid") || !strings.Contains(out, "accepted 600, duplicates 600, invalid 12") {
		t.Errorf("%v: %s", err, out)
	}
	want := `^line 1202: is not JSON
line 1203: /profile_key: must not be empty
line 1204: there is no field "profile"
line 1205: /profile_key: must be a string
line 1206: must be an object, such as .*
line 1207: is not JSON
line 1208: /occurred_at: must be a time .*
line 1209: /occurred_at: must be a time .*
line 1210: it is not UTF-8 text
line 1211: it is not UTF-8 text
line 1212: /properties: must be an object.*
line 1213: there is more than one object in the line
accepted`
	if !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("says %s", out)
	}
	if n := strings.Count(says(t, env, `looked`, "events", "list", "c1", "--limit=0"), "looked"); n != 600 {
		t.Errorf("%d events are kept", n)
	}
}

func TestCommandsThatAreRefused(t *testing.T) {
	t.Parallel()
	env := running(t)
	mustRun(t, env, "flows", "create", "Welcome", "-f", fileOf(t, strings.ReplaceAll(restful, `"next": "over"`, `"next": "gone"`)))
	for want, args := range map[string][]string{
		"/definition/nodes/rest/next":    {"flows", "publish", "Welcome"},
		"/definition/nodes/rest/next: ":  {"flows", "plan", "Welcome", "1"},
		"version 1 has":                  {"flows", "validate", "Welcome", "1"},
		"the version is 1 and 2":         {"flows", "plan", "Welcome", "1", "--version=2"},
		"is no length of time such as":   {"flows", "resume", "Welcome", "--spread=P1M"},
		"no such flow version":           {"flows", "discard", "Welcome", "9"},
		`no flow "Nobody"`:               {"flows", "get", "Nobody"},
		"possible now: ":                 {"flows", "drain", "Welcome"},
		"/name: ":                        {"flows", "create", "Welcome"},
		"the flow needs a name":          {"flows", "create"},
		"is not JSON":                    {"flows", "create", "Other", "-f", fileOf(t, "{")},
		"--properties: must be a JSON":   {"events", "send", "c1", "signed_up", "--properties", "7"},
		"/event: ":                       {"events", "send", "c1", strings.Repeat("x", 101)},
		"no such enrollment":             {"enrollments", "get", "enr_1"},
		"must be one of":                 {"flows", "publish", "Welcome", "--in-flight=fly"},
		"--later is":                     {"flows", "simulate", "Welcome", "c1", "--later=bought"},
		"?status: ":                      {"enrollments", "list", "--status=asleep"},
		"the key is not one":             {"flows", "list"},
		"LEMMA_API_KEY is not set":       {"flows", "list"},
		"LEMMA_URL: the server must be":  {"flows", "list"},
		"no such flow in this workspace": {"flows", "get", "flw_1"},
	} {
		with := env
		switch want {
		case "the key is not one":
			with = []string{env[0], "LEMMA_API_KEY=lk_x"}
		case "LEMMA_API_KEY is not set":
			with = env[:1]
		case "LEMMA_URL: the server must be":
			with = []string{"LEMMA_URL=here", env[1]}
		}
		if out, err := lemmaWith(t, with, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lemma %v: %v: %s", args, err, out)
		}
	}
}

func TestAPIKeyComesFromAFile(t *testing.T) {
	t.Parallel()
	env := running(t)
	_, token, _ := strings.Cut(env[1], "=")
	says(t, []string{env[0], "LEMMA_API_KEY_FILE=" + fileOf(t, token+"\n")}, "NAME", "flows", "list")
	if out := mustRun(t, env, "config"); strings.Contains(out, token) || !strings.Contains(out, "LEMMA_API_KEY=(set)\n") {
		t.Errorf("config prints %s", out)
	}
}

// A look at the audience that failed is told with the counts.
func TestCountsTellOfTheAudience(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	why := "source_changed: a column is gone"
	read := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	err := showCounts(&out, client.FlowCounts{AudiencePoll: &client.AudiencePoll{LastAt: &read, RowsRead: 9, Refused: map[string]int64{"invalid_key": 2}, Failures: 3, LastError: &why}})
	want := `(?s)audience read +2027-01-02T03:04:05Z.*not enrolled +invalid_key 2.*failures since +3.*because of +source_changed: a column is gone.*next look +none.*NODE`
	if err != nil || !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%v: %s", err, out.String())
	}
}

// What others wrote does not steer the terminal.
func TestTablesAreTame(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := table(&out, "A|B", []string{"x\x1b[2Jy\nz"}, func(s string) []string { return []string{s, "b"} }); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b") || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("prints %q", out.String())
	}
}
