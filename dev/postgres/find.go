package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Oldest is the oldest major version that Lemma runs on.
const Oldest = 14

// ErrNotFound is wrapped by the error of Find if the machine has no usable Postgres.
var ErrNotFound = errors.New("no Postgres found")

// Binaries is a folder with initdb and postgres in it, and their major version.
type Binaries struct {
	Dir     string
	Version int
}

// places are where distributions put the server's binaries, newest last.
var places = []string{
	"/usr/lib/postgresql/*/bin", "/usr/libexec/postgresql*", "/usr/pgsql-*/bin", "/usr/lib64/pgsql*/bin", "/usr/local/pgsql/bin",
	"/usr/local/lib/postgresql/bin",
	"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin", "/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Find searches for the binaries: only in dir if it is given; else in PATH, in the
// folder of pg_config, and where distributions put them. It prefers the version wanted
// (0: any) to the first that is not too old.
func Find(dir string, wanted int) (Binaries, error) {
	if dir != "" {
		b, err := inspect(dir)
		if err != nil {
			return b, fmt.Errorf("%w in LEMMA_PG_BIN: %w", ErrNotFound, err)
		}
		return b, nil
	}
	var usable []Binaries
	var refused []string
	for _, dir := range candidates() {
		b, err := inspect(dir)
		switch {
		case err == nil:
			usable = append(usable, b)
		case !errors.Is(err, os.ErrNotExist):
			refused = append(refused, err.Error())
		}
	}
	if i := slices.IndexFunc(usable, func(b Binaries) bool { return b.Version == wanted }); i >= 0 {
		return usable[i], nil
	}
	if len(usable) > 0 {
		return usable[0], nil
	}
	return Binaries{}, noneFound(refused)
}

func noneFound(refused []string) error {
	seen := ""
	if len(refused) > 0 {
		seen = " (not usable: " + strings.Join(refused, "; ") + ")"
	}
	return fmt.Errorf(`%w on this machine%s; there are three ways out:
  install it, version %d or newer: apt-get install postgresql
  set LEMMA_PG_BIN to the folder that holds its initdb and postgres
  set DATABASE_URL to a Postgres that is running`, ErrNotFound, seen, Oldest)
}

// candidates lists folders that may hold the binaries, best first.
func candidates() []string {
	var dirs []string
	if p, err := exec.LookPath("postgres"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil { // initdb needs the programs beside it
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range places {
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, func(a, b string) int { return trailingNumber(b) - trailingNumber(a) })
		dirs = append(dirs, found...)
	}
	return dirs
}

var digits = regexp.MustCompile(`\d+`)

// trailingNumber is the last number in a path: the version, for places.
func trailingNumber(path string) int {
	all := digits.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1])
	return n
}

// inspect returns the version in a folder. It returns an error for one that is too old
// or incomplete (many machines have only the client).
func inspect(dir string) (Binaries, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return Binaries{}, err
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("ask postgres for its version: %w", err)
	}
	version, _ := strconv.Atoi(digits.FindString(string(out)))
	if version < Oldest {
		return Binaries{}, fmt.Errorf("%s is version %d, and %d is needed", dir, version, Oldest)
	}
	return Binaries{Dir: dir, Version: version}, nil
}

// dataVersion is the major version that made a data folder, 0 if there is none.
func dataVersion(data string) int {
	raw, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if err != nil {
		return 0
	}
	version, _ := strconv.Atoi(digits.FindString(string(raw)))
	return version
}
