package lemma_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// compatible are the licences of code that may be linked into a program under
// Apache-2.0. MPL-2.0 applies to its own files only.
var compatible = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

// sentences identify licences. The first one that is found decides.
var sentences = []struct{ licence, sentence string }{
	{"AGPL", "GNU AFFERO GENERAL PUBLIC LICENSE"},
	{"GPL", "GNU GENERAL PUBLIC LICENSE"},
	{"LGPL", "GNU LESSER GENERAL PUBLIC LICENSE"},
	{"MPL-2.0", "Mozilla Public License, version 2.0"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"Apache-2.0", "Apache License Version 2.0"},
	{"BSD-3-Clause", "may be used to endorse or promote products"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software"},
}

// licenceOf returns the licence with a text; empty if it is unknown. The GPL licences
// name each other, so their text must begin with their own name.
func licenceOf(text string) string {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	for _, m := range sentences {
		at := strings.Index(text, strings.ToLower(m.sentence))
		if at >= 0 && (!strings.HasSuffix(m.licence, "GPL") || at < 40) {
			return m.licence
		}
	}
	return ""
}

// module is a module that is linked into our packages or their tests.
type module struct {
	Path, Version, Dir string
	Main, Indirect     bool
}

// linked lists these modules, each once.
func linked(t *testing.T) []module {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=Module", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	var all []module
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ Module *module }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module != nil && !p.Module.Main && !seen[p.Module.Path] {
			seen[p.Module.Path] = true
			all = append(all, *p.Module)
		}
	}
}

// licenceIn returns the licence of a module by the files in its folder.
func licenceIn(m module) string {
	files, _ := filepath.Glob(filepath.Join(m.Dir, "*"))
	for _, f := range files {
		if name := strings.ToUpper(filepath.Base(f)); !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		if raw, err := os.ReadFile(f); err == nil {
			if l := licenceOf(string(raw)); l != "" {
				return l
			}
		}
	}
	return ""
}

func TestLicences(t *testing.T) {
	t.Parallel()
	all := linked(t)
	if len(all) < 20 {
		t.Fatalf("only %d modules are linked", len(all))
	}
	for _, m := range all {
		if l := licenceIn(m); !slices.Contains(compatible, l) {
			t.Errorf("%s has the licence %q, which is not compatible", m.Path, l)
		}
	}
}

// docs/reference/dependencies.md explains exactly the direct dependencies, with their licences.
func TestDependenciesAreExplained(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("docs/reference/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]string{}
	rows := regexp.MustCompile("(?m)^\\| `([^` ]+)` [^|]*\\|[^|]*\\|[^|]*\\| ([A-Za-z0-9.-]+) \\|$")
	for _, m := range rows.FindAllStringSubmatch(string(doc), -1) {
		explained[m[1]] = m[2]
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]module{}
	for _, m := range linked(t) {
		folders[m.Path] = m
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
		licence, ok := explained[m[1]]
		if !ok {
			t.Errorf("%s is not in docs/reference/dependencies.md", m[1])
		}
		if l := licenceIn(folders[m[1]]); ok && folders[m[1]].Dir != "" && l != licence {
			t.Errorf("%s has the licence %s, but docs/reference/dependencies.md has %s", m[1], l, licence)
		}
		delete(explained, m[1])
	}
	for path := range explained {
		t.Errorf("docs/reference/dependencies.md explains %s, which is not a direct dependency", path)
	}
}

func TestLicencesAreRecognised(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"MIT License\n\nPermission is hereby granted, free of charge, to any person\nobtaining a copy of this": "MIT",
		"                    GNU AFFERO GENERAL PUBLIC LICENSE\n Version 3":                                    "AGPL",
		"Mozilla Public License Version 2.0\n==================\n ... GNU General Public License":              "MPL-2.0",
		"Redistributions in binary form must reproduce the above. " +
			"Neither the name may be used to endorse or\npromote products": "BSD-3-Clause",
		"Business Source License 1.1": "",
	} {
		if got := licenceOf(text); got != want {
			t.Errorf("%q is recognised as %q", text, got)
		}
	}
	if slices.Contains(compatible, "AGPL") || slices.Contains(compatible, "") {
		t.Error("an incompatible licence is in the list")
	}
}
