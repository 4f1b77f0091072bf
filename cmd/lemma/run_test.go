package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/pgtest"
	"lemma/secrets"
)

// lemmaWith runs the program with an environment, given as NAME=value, and returns
// its output.
func lemmaWith(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	vars := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	var out strings.Builder
	err := Run(t.Context(), args, func(name string) (string, bool) { value, set := vars[name]; return value, set }, &out)
	return out.String(), err
}

// on is the environment with the DSN of a test's database.
func on(pool *pgxpool.Pool) []string { return []string{"DATABASE_URL=" + pgtest.DSN(pool)} }

func mustRun(t *testing.T, env []string, args ...string) string {
	t.Helper()
	out, err := lemmaWith(t, env, args...)
	if err != nil {
		t.Fatalf("lemma %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func TestNoCommandPrintsHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--help"}} {
		if out := mustRun(t, nil, args...); !strings.Contains(out, "migrate up") || !strings.Contains(out, "($LEMMA_LEASE)") {
			t.Errorf("lemma %v prints %s", args, out)
		}
	}
}

func TestCommandsNeedADatabase(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "status"}, {"doctor"}, {"keys", "list", "--workspace=x"}} {
		if _, err := lemmaWith(t, nil, args...); err == nil || !strings.Contains(err.Error(), "DATABASE_URL is not set") {
			t.Errorf("lemma %v: %v", args, err)
		}
	}
}

// On a database without the schema each command asks the user to migrate, not which
// table is missing.
func TestCommandsNeedTheSchema(t *testing.T) {
	t.Parallel()
	env := append(on(pgtest.Empty(t)), "LEMMA_SECRET_KEY="+secrets.NewKey())
	for _, args := range [][]string{{"work"}, {"serve", "--work", "--listen=127.0.0.1:0", "--metrics-listen="}, {"secrets", "reseal"},
		{"keys", "create", "--workspace=x"}, {"keys", "list", "--workspace=x"}} {
		_, err := lemmaWith(t, env, args...)
		if err == nil || !strings.Contains(err.Error(), "lemma migrate up") || strings.Contains(err.Error(), "SQLSTATE") ||
			strings.Contains(err.Error(), "no table") {
			t.Errorf("lemma %v: %v", args, err)
		}
	}
}

func TestMigrateAndDoctor(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	if out := mustRun(t, on(pool), "migrate", "status"); !strings.Contains(out, "00001_tenants.sql") || strings.Contains(out, "Z\n") {
		t.Errorf("status of an empty database: %s", out)
	}
	if out, err := lemmaWith(t, on(pool), "doctor", "--allow-no-fsync"); err == nil || !strings.Contains(err.Error(), "refuses to send") {
		t.Errorf("doctor on an empty database: %v: %s", err, out)
	}
	mustRun(t, on(pool), "migrate", "up")
	if out := mustRun(t, on(pool), "migrate", "status"); strings.Contains(out, "not applied") {
		t.Errorf("status after up: %s", out)
	}
	if out := mustRun(t, on(pool), "doctor", "--allow-no-fsync"); strings.Contains(out, "RED") || !strings.Contains(out, "attempts_bound") {
		t.Errorf("doctor after up: %s", out)
	}
	// The test's cluster has fsync off, which production must not have.
	out, err := lemmaWith(t, on(pool), "doctor")
	if err == nil || !strings.HasPrefix(err.Error(), "1 of ") || !strings.Contains(out, "RED  fsync") {
		t.Errorf("doctor with fsync off: %v: %s", err, out)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	first := mustRun(t, on(pool), "keys", "create", "--workspace=Shop")
	second := mustRun(t, on(pool), "keys", "create", "--workspace=Shop", "--name=reader", "--scope=campaigns:read", "--scope=audiences:read")
	workspace := regexp.MustCompile(`wsp_\w+`)
	if a, b := workspace.FindString(first), workspace.FindString(second); a == "" || a != b {
		t.Errorf("two keys of one workspace belong to %s and %s", a, b)
	}
	token := regexp.MustCompile(`lk_\w+`).FindString(second)
	id := regexp.MustCompile(`key_\w+`).FindString(second)
	list := mustRun(t, on(pool), "keys", "list", "--workspace=Shop")
	if strings.Contains(list, token) || !strings.Contains(list, id) || !strings.Contains(list, "campaigns:read,audiences:read") {
		t.Errorf("list prints %s", list)
	}
	mustRun(t, on(pool), "keys", "revoke", "--workspace=Shop", id)
	if list := mustRun(t, on(pool), "keys", "list", "--workspace=Shop"); strings.Count(list, "never\n") != 1 {
		t.Errorf("list after revoke prints %s", list)
	}
}

func TestKeysThatCannotBe(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	mustRun(t, on(pool), "keys", "create", "--workspace=Shop")
	for want, args := range map[string][]string{
		"a known scope":     {"keys", "create", "--workspace=Shop", "--scope=everything"},
		"no such workspace": {"keys", "list", "--workspace=Missing"},
		"no such key":       {"keys", "revoke", "--workspace=Shop", "key_1"},
	} {
		if _, err := lemmaWith(t, on(pool), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lemma %v: %v", args, err)
		}
	}
}

func TestSettingsComeFromFlagEnvironmentFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lemma.env")
	if err := os.WriteFile(file, []byte("# ours\nLEMMA_LEASE=7m\nLEMMA_REAP_EVERY=3m\nLEMMA_LISTEN=127.0.0.1:3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := mustRun(t, []string{"LEMMA_REAP_EVERY=2m", "LEMMA_LISTEN=127.0.0.1:2"}, "config", "--env-file="+file, "--listen=127.0.0.1:1")
	for _, line := range []string{"LEMMA_LISTEN=127.0.0.1:1\n", "LEMMA_REAP_EVERY=2m0s\n", "LEMMA_LEASE=7m0s\n", "LEMMA_SWEEP_EVERY=30s\n"} {
		if !strings.Contains(out, line) {
			t.Errorf("does not contain %s: %s", line, out)
		}
	}
}

// A setting that may be empty is none if its variable is empty, also if the file has a value.
// An empty variable of any other setting is as if it was not set.
func TestEmptyVariables(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lemma.env")
	set, unset, want := "LEMMA_LEASE=7m\nLEMMA_LISTEN=127.0.0.1:3\n", []string{"LEMMA_LEASE=", "LEMMA_LISTEN=", "LEMMA_ARCHIVE="},
		[]string{"LEMMA_LEASE=7m0s\n", "LEMMA_LISTEN=127.0.0.1:3\n", "LEMMA_URL=http://127.0.0.1:8080\n", "LEMMA_ARCHIVE=false\n"}
	for name, value := range map[string]string{
		"LEMMA_METRICS_LISTEN": "127.0.0.1:4", "LEMMA_LMTP_LISTEN": "127.0.0.1:5", "LEMMA_WORK_LISTEN": "127.0.0.1:6",
		"LEMMA_PUBLIC_URL": "https://lemma.example.com", "LEMMA_BLOBS": "file:///var/lib/lemma", "LEMMA_PG_BIN": "/usr/bin",
		"LEMMA_SENTRY_DSN": "https://key@sentry.example.com/1", "LEMMA_API_KEY": "lk_1", "DATABASE_URL": "postgres://db.example/lemma",
	} {
		set, unset, want = set+name+"="+value+"\n", append(unset, name+"="), append(want, name+"=\n")
	}
	if err := os.WriteFile(file, []byte(set), 0o600); err != nil {
		t.Fatal(err)
	}
	out := "\n" + mustRun(t, append(unset, "LEMMA_URL="), "config", "--env-file="+file)
	for _, line := range want {
		if !strings.Contains(out, "\n"+line) {
			t.Errorf("does not contain %s: %s", line, out)
		}
	}
	if out := mustRun(t, []string{"LEMMA_METRICS_LISTEN="}, "config"); !strings.Contains(out, "LEMMA_METRICS_LISTEN=\n") {
		t.Errorf("an empty variable is the default: %s", out)
	}
}

func TestSecretsComeFromFilesAndAreNotPrinted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, url := filepath.Join(dir, "key"), filepath.Join(dir, "url")
	const secret = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	for file, text := range map[string]string{key: secret + "\n", url: "postgres://me:hunter2@db.example:5433/lemma?sslmode=require\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := mustRun(t, []string{"LEMMA_SECRET_KEY_FILE=" + key, "DATABASE_URL_FILE=" + url}, "config")
	if strings.Contains(out, "hunter2") || strings.Contains(out, secret) {
		t.Errorf("prints a secret: %s", out)
	}
	if !strings.Contains(out, "LEMMA_SECRET_KEY=(set)\n") || !strings.Contains(out, "DATABASE_URL=postgres://db.example:5433/lemma\n") {
		t.Errorf("does not print what is set: %s", out)
	}
}

func TestEachSecretIsRead(t *testing.T) {
	t.Parallel()
	for f := range fields() {
		name := f.Tag.Get("var")
		if f.Tag.Get("kong") != "-" || name == "LEMMA_SECRET_KEY" || name == "LEMMA_SENTRY_DSN" { // these have a form
			continue
		}
		for _, secret := range []string{"hunter2", "hunter2://hunter2/hunter2"} {
			out := mustRun(t, []string{name + "=" + secret}, "config")
			if !strings.Contains(out, name+"=(set)\n") || strings.Contains(out, "hunter2") {
				t.Errorf("%s is not read, or shown: %s", name, out)
			}
		}
	}
}

func TestSettingsThatAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	misspelt := filepath.Join(dir, "misspelt")
	if err := os.WriteFile(misspelt, []byte("LEMMA_LEESE=1m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		env  []string
		args []string
	}{
		"too long for a lease":                     {env: []string{"LEMMA_LEASE=40s"}},
		"LEMMA_REAP_EVERY is 0s: must be positive": {env: []string{"LEMMA_REAP_EVERY=0s"}},
		"LEMMA_SEND_WORKERS is 0":                  {env: []string{"LEMMA_SEND_WORKERS=0"}},
		"LEMMA_MAX_WINDOW is -1":                   {env: []string{"LEMMA_MAX_WINDOW=-1"}},
		"LEMMA_LISTEN must be":                     {env: []string{"LEMMA_LISTEN=8080"}},
		"LEMMA_BLOBS: the parameter endpoint":      {env: []string{"LEMMA_BLOBS=s3://b?endpoint=https://me:hunter2@s3.example.com"}},
		"LEMMA_BLOBS: must be":                     {env: []string{"LEMMA_BLOBS=s3://b?secret_key=hunter2"}},
		"LEMMA_URL: the server must be":            {env: []string{"LEMMA_URL=https://me:hunter2@lemma.example.com"}},
		"LEMMA_LISTEN must be an address":          {args: []string{"--listen="}},
		"LEMMA_PUBLIC_URL must be":                 {env: []string{"LEMMA_PUBLIC_URL=http://lemma.example.com"}},
		"DATABASE_URL cannot be parsed":            {env: []string{"DATABASE_URL=postgres://a:hunter2@h:port/x"}},
		"LEMMA_SECRET_KEY: key":                    {env: []string{"LEMMA_SECRET_KEY=hunter22"}},
		"are both set":                             {env: []string{"LEMMA_SECRET_KEY=hunter22", "LEMMA_SECRET_KEY_FILE=x"}},
		"read DATABASE_URL_FILE":                   {env: []string{"DATABASE_URL_FILE=" + dir + "/none"}},
		"line 1":                                   {args: []string{"--env-file=" + misspelt}},
		"must be one of":                           {args: []string{"--log-level=loud"}},
		"lease":                                    {env: []string{"LEMMA_LEASE=soon"}},
	} {
		out, err := lemmaWith(t, c.env, append([]string{"config"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: no word of %q: %v: %s", c, want, err, out)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error contains a secret: %v", err)
		}
	}
}

// defaultConfig has the default of every setting.
func defaultConfig() Config {
	var c struct{ Config }
	if _, err := parse(&c, nil, func(string) (string, bool) { return "", false }, io.Discard); err != nil {
		panic(err) // the tags of Config are wrong
	}
	return c.Config
}

// An empty environment gives the defaults.
func TestDefaults(t *testing.T) {
	t.Parallel()
	c := defaultConfig()
	if err := c.check(); err != nil {
		t.Error(err)
	}
	if c.Lease != 5*time.Minute || c.SendWorkers != 16 || c.Listen != "127.0.0.1:8080" || c.MaxWindow != 500 {
		t.Errorf("defaults are %+v", c)
	}
}

// docs/reference/settings.md lists exactly the settings, with their flags and defaults.
func TestSettingsAreExplained(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/reference/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	for f := range fields() {
		name := f.Tag.Get("var")
		row := regexp.MustCompile("(?m)^\\| `" + name + "` .*$").FindString(string(doc))
		flag := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "LEMMA_")), "_", "-")
		if f.Tag.Get("kong") == "-" {
			flag = "none"
		}
		_, secret := f.Tag.Lookup("secret")
		if !strings.Contains(row, flag) || !strings.Contains(row, f.Tag.Get("default")) || strings.Contains(row, `\*`) != secret {
			t.Errorf("docs/reference/settings.md does not explain %s as it is: %q", name, row)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` ").FindAllStringSubmatch(string(doc), -1) {
		if !known(row[1]) {
			t.Errorf("docs/reference/settings.md explains %s, which is no setting", row[1])
		}
	}
}
