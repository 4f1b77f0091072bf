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

	"lemma"
	"lemma/client"
	"lemma/pgtest"
	"lemma/server"
	"lemma/workspaces"
)

// running is the environment for commands that call a running Lemma, on a database
// of its own. It has no workers: enrollments do not move.
func running(t *testing.T) []string {
	t.Helper()
	b := pgtest.NewShop(t)
	s, err := server.New(server.Deps{Pool: b.Pool, Box: pgtest.Box(t), Log: slog.New(slog.DiscardHandler)}, server.Config{})
	b.Must(err)
	web := httptest.NewServer(s.API)
	t.Cleanup(web.Close)
	_, key, err := s.Workspaces.CreateKey(t.Context(), b.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "test", Scopes: []string{workspaces.Admin}})
	b.Must(err)
	return []string{"LEMMA_URL=" + web.URL, "LEMMA_API_KEY=" + key}
}

// fileOf creates a file.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const restful = `{"triggers": [{"type": "event", "event": "signed_up", "condition": "trigger.properties.plan == 'pro'"}],
	"recurrence": {"policy": "once"},
	"start": "rest", "nodes": {"rest": {"type": "delay", "for": "P1D", "next": "over"}, "over": {"type": "exit"}}}`

// prints runs a command and checks what it prints.
func prints(t *testing.T, env []string, want string, args ...string) string {
	t.Helper()
	out := mustRun(t, env, args...)
	if !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("lemma %s does not print %q: %s", strings.Join(args, " "), want, out)
	}
	return out
}

func TestFlowsFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	prints(t, env, `status +draft`, "flows", "create", "Welcome", "-f", fileOf(t, restful))
	prints(t, env, `flw_\w+ +Welcome +draft +none`, "flows", "list")
	prints(t, env, `version 1 can be published`, "flows", "validate", "Welcome")
	prints(t, env, `over none would make \d+ changes. Publishing enrolls no profile`, "flows", "plan", "Welcome")
	prints(t, env, `live version +1`, "flows", "publish", "Welcome")
	prints(t, env, `enrolled, enrollment enr_`, "events", "send", "c1", "signed_up", "--properties", `{"plan": "pro"}`)
	prints(t, env, `version 2 is a draft`, "flows", "draft", "Welcome", "-f", fileOf(t, strings.ReplaceAll(restful, `"rest"`, `"nap"`)))
	prints(t, env, `- /nodes/rest`, "flows", "diff", "Welcome")
	prints(t, env, `stranded`, "flows", "plan", "Welcome", "2", "--in-flight=move")
	prints(t, env, `Publishing version 1`, "flows", "plan", "Welcome", "1")
	prints(t, env, `"start": "nap"`, "flows", "versions", "Welcome", "2")
	prints(t, env, `version 2 is a draft, revision 2`, "flows", "draft", "Welcome", "2", "-f",
		fileOf(t, strings.ReplaceAll(restful, `"rest"`, `"nap"`)))
	prints(t, env, `\(entry\) .* move`, "flows", "plan", "Welcome", "--in-flight=move", "--map", "rest=nap")
	prints(t, env, `version 3 is a draft`, "flows", "draft", "Welcome", "-f", fileOf(t, restful))
	prints(t, env, `version 3 is deleted`, "flows", "discard", "Welcome", "3")
	prints(t, env, `(?s)Publishing version 2.*live version +2`, "flows", "publish", "Welcome", "--in-flight=stay")
	prints(t, env, `live version +1`, "flows", "rollback", "Welcome", "1")
	prints(t, env, `status +paused`, "flows", "pause", "Welcome")
	prints(t, env, `refused as paused`, "events", "send", "c2", "signed_up", "--properties", `{"plan": "pro"}`)
	prints(t, env, `status +live`, "flows", "resume", "Welcome", "--catch-up=0s")
	prints(t, env, `status +paused`, "flows", "pause", "Welcome")
	prints(t, env, `status +live`, "flows", "resume", "Welcome", "--catch-up=PT10M")
	prints(t, env, `(?s)rolled_back.*published`, "flows", "history", "Welcome")
	prints(t, env, `(?s)enrolled +1.*paused 1.*NOTIFICATIONS`, "flows", "counts", "Welcome", "--version=1")
	prints(t, env, `(?s)version +2\s+enrolled +0`, "flows", "counts", "Welcome", "2")
	prints(t, env, `c2 +paused`, "flows", "refusals", "Welcome")
	prints(t, env, `paused`, "flows", "explain", "Welcome", "c2")
	prints(t, env, `(?s)rest +delay +waiting.*ends as completed`, "flows", "simulate", "Welcome", "c9", "--version=1",
		"--at=2027-01-02T15:04:05Z")
	prints(t, env, `would not be enrolled: no_trigger`, "flows", "simulate", "Welcome", "c9", "--version=1", "--trigger=audience")
	prints(t, env, `status +draining`, "flows", "drain", "Welcome")
	prints(t, env, `status +archived`, "flows", "archive", "Welcome")
	var flow struct{ Name, Status string }
	if err := json.Unmarshal([]byte(mustRun(t, env, "flows", "get", "Welcome", "--json")), &flow); err != nil || flow.Status != "archived" {
		t.Errorf("as JSON it is %+v: %v", flow, err)
	}
}

// Two people change a draft, and one of them publishes the version that they saw.
func TestDraftsAreGuardedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	mustRun(t, env, "flows", "create", "Welcome", "-f", fileOf(t, restful))
	file := fileOf(t, strings.ReplaceAll(restful, "P1D", "P2D"))
	var plan struct{ ETag string }
	if err := json.Unmarshal([]byte(mustRun(t, env, "flows", "plan", "Welcome", "--json")), &plan); err != nil || plan.ETag == "" {
		t.Fatalf("%+v: %v", plan, err)
	}
	prints(t, env, `--if-match=`+plan.ETag+`, publish does exactly this`, "flows", "plan", "Welcome")
	prints(t, env, `\(ETag 2\)`, "flows", "draft", "Welcome", "1", "-f", file, "--if-match=1")
	prints(t, env, `"etag": "3"`, "flows", "draft", "Welcome", "1", "-f", file, "--if-match", `"2"`, "--json")
	for want, args := range map[string][]string{
		"the version has been changed": {"draft", "Welcome", "1", "-f", file, "--if-match=2"},
		"the flow has been changed":    {"publish", "Welcome", "--if-match", plan.ETag},
		"needs the version of":         {"draft", "Welcome", "-f", file, "--if-match=2"},
	} {
		if out, err := lemmaWith(t, env, append([]string{"flows"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lemma flows %v: %v: %s", args, err, out)
		}
	}
	tag := regexp.MustCompile(`--if-match=(\d+-[0-9a-f]{16})`).FindStringSubmatch(mustRun(t, env, "flows", "plan", "Welcome"))
	prints(t, env, `live version +1`, "flows", "publish", "Welcome", "--if-match="+tag[1])
}

// A name finds the flow that is not archived, also if it is older.
func TestFlowsOfOneNameFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	prints(t, env, `status +draft`, "flows", "create", "Hello", "-f", fileOf(t, restful))
	prints(t, env, `status +draft`, "flows", "create", "Welcome", "-f", fileOf(t, restful))
	prints(t, env, `status +archived`, "flows", "archive", "Welcome")
	prints(t, env, `status +archived`, "flows", "get", "Welcome")
	c, err := client.New(strings.TrimPrefix(env[0], "LEMMA_URL="), strings.TrimPrefix(env[1], "LEMMA_API_KEY="))
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`flw_\w+`).FindString(mustRun(t, env, "flows", "get", "Hello"))
	name := "Welcome"
	if _, err := c.UpdateFlow(t.Context(), id, client.FlowPatch{Name: &name}); err != nil {
		t.Fatal(err)
	}
	prints(t, env, `status +draft`, "flows", "get", "Welcome")
	prints(t, env, `status +archived`, "flows", "archive", "Welcome")
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
	if out := prints(t, env, `would be enrolled`, "enrollments", "create", "Welcome", "c1", "--dry-run"); strings.Contains(out, "enr_") {
		t.Errorf("a preview has an id: %s", out)
	}
	if out := mustRun(t, env, "enrollments", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("a preview has enrolled: %s", out)
	}
	id := regexp.MustCompile(`enr_\w+`).FindString(prints(t, env, `enrolled`, "enrollments", "create", "Welcome", "c1"))
	prints(t, env, `refused as already_enrolled, enrollment `+id, "enrollments", "create", "Welcome", "c1")
	prints(t, env, id+` +c1`, "enrollments", "list", "--flow=Welcome", "--profile=c1")
	if out := mustRun(t, env, "enrollments", "list", "--blocked-reason=any", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("an enrollment is blocked: %s", out)
	}
	prints(t, env, `profile +c1`, "enrollments", "get", id)
	prints(t, env, `node +over`, "enrollments", "move", id, "over")
	prints(t, env, `because of +manual`, "enrollments", "exit", id, "--note", "asked by phone")
	prints(t, env, `(?s)OUTCOME.*moved.*exited.*asked by phone`, "enrollments", "history", id)
}

func TestManyEventsFromTheCommandLine(t *testing.T) {
	t.Parallel()
	env := running(t)
	var lines strings.Builder
	for range 2 { // 1,200 lines of 600 events are two chunks
		for i := range 600 {
			lines.WriteString(`{"profile_key": "c1", "event": "looked", "source_id": "e` + strings.Repeat("x", i%200) +
				string(rune('a'+i/200)) + `"}` + "\n")
		}
	}
	broken := []string{"no event", `{"profile_key": "", "event": "looked"}`, `{"profile": "c1"}`, `{"profile_key": 7, "event": "x"}`, `["x"]`,
		`{"profile_key": "c1"`,
		`{"profile_key": "c1", "event": "x", "occurred_at": "today"}`, `{"profile_key": "c1", "event": "x", "occurred_at": 7}`,
		`{"profile_key": "c\ud800", "event": "x"}`,
		"{\"profile_key\": \"c\xff\", \"event\": " +
			"\"x\"}", `{"profile_key": "c1", "event": "x", "properties": []}`, `{"profile_key": "c1", "event": "x"} {}`}
	file := fileOf(t, lines.String()+"\n"+strings.Join(broken, "\n")+"\n")
	out, err := lemmaWith(t, env, "events", "bulk", "-f", file)
	if err == nil || !strings.Contains(err.Error(), "12 lines are not valid") ||
		!strings.Contains(out, "accepted 600, duplicates 600, invalid 12") {
		t.Errorf("%v: %s", err, out)
	}
	want := `^line 1202: is not JSON
line 1203: /profile_key: must not be empty
line 1204: unknown field "profile"
line 1205: /profile_key: must be a string
line 1206: must be an object, such as .*
line 1207: is not JSON
line 1208: /occurred_at: must be a time .*
line 1209: /occurred_at: must be a time .*
line 1210: is not UTF-8 text
line 1211: is not UTF-8 text
line 1212: /properties: must be an object.*
line 1213: has more than one object
accepted`
	if !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("prints %s", out)
	}
	if n := strings.Count(prints(t, env, `looked`, "events", "list", "c1", "--limit=0"), "looked"); n != 600 {
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
		"given twice, as 1 and 2":        {"flows", "plan", "Welcome", "1", "--version=2"},
		"is not a duration such as":      {"flows", "resume", "Welcome", "--catch-up=P1M"},
		"no such flow version":           {"flows", "discard", "Welcome", "9"},
		`no flow "Missing"`:              {"flows", "get", "Missing"},
		"allowed: ":                      {"flows", "drain", "Welcome"},
		"/name: ":                        {"flows", "create", "Welcome"},
		"the flow must have a name":      {"flows", "create"},
		"is not JSON":                    {"flows", "create", "Other", "-f", fileOf(t, "{")},
		"--properties: must be a JSON":   {"events", "send", "c1", "signed_up", "--properties", "7"},
		"/event: ":                       {"events", "send", "c1", strings.Repeat("x", 101)},
		"no such enrollment":             {"enrollments", "get", "enr_1"},
		"must be one of":                 {"flows", "publish", "Welcome", "--in-flight=fly"},
		"--later is":                     {"flows", "simulate", "Welcome", "c1", "--later=bought"},
		"?status: ":                      {"enrollments", "list", "--status=asleep"},
		"the key does not exist":         {"flows", "list"},
		"LEMMA_API_KEY is not set":       {"flows", "list"},
		"LEMMA_URL: the server must be":  {"flows", "list"},
		"no such flow in this workspace": {"flows", "get", "flw_1"},
	} {
		with := env
		switch want {
		case "the key does not exist":
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
	prints(t, []string{env[0], "LEMMA_API_KEY_FILE=" + fileOf(t, token+"\n")}, "NAME", "flows", "list")
	if out := mustRun(t, env, "config"); strings.Contains(out, token) || !strings.Contains(out, "LEMMA_API_KEY=(set)\n") {
		t.Errorf("config prints %s", out)
	}
}
