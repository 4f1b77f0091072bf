package lemma_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// connecting are the functions and types of the standard library that open a
// connection, by import path.
var connecting = map[string][]string{
	"net":           {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialUnix", "DialIP", "Dialer"},
	"crypto/tls":    {"Dial", "DialWithDialer", "Dialer"},
	"net/http":      {"DefaultTransport", "DefaultClient", "Get", "Head", "Post", "PostForm"},
	"net/smtp":      {"Dial", "SendMail"},
	"net/rpc":       {"Dial", "DialHTTP", "DialHTTPPath"},
	"log/syslog":    {"Dial", "New", "NewLogger"},
	"syscall":       {"Connect", "Socket"},
	"net/textproto": {"Dial"},
}

// mayConnect are the packages that may open connections: dial itself, development,
// and the client, which runs in the customer's program.
var mayConnect = []string{"dial", "client", "dev/postgres", "dev/catcher", "dev/sink", "dev/shop", "dev/demo", "dev/bench", "pgtest"}

// Every connection to an address that a tenant has entered goes through package
// dial, which checks the address. The demo and the benchmarks connect only to what
// they have started.
func TestOnlyDialConnects(t *testing.T) {
	t.Parallel()
	for _, r := range packages(t) {
		if slices.Contains(mayConnect, r.name()) {
			continue
		}
		r.eachFile(t, connectFaults)
	}
}

// eachFile reports the faults of the package's source files.
func (r goPackage) eachFile(t *testing.T, faults func(file string, source []byte) []string) {
	t.Helper()
	for _, file := range r.GoFiles {
		source, err := os.ReadFile(filepath.Join(r.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		report(t, faults(path.Join(r.name(), file), source))
	}
}

// connectFaults are the places in a file that open a connection, or create an HTTP
// client that opens one itself.
func connectFaults(file string, source []byte) (faults []string) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
	if err != nil {
		return []string{err.Error()}
	}
	imported := map[string]string{} // name in the file -> import path
	for _, i := range tree.Imports {
		where, _ := strconv.Unquote(i.Path.Value)
		name := path.Base(where)
		if i.Name != nil {
			name = i.Name.Name
		}
		imported[name] = where
		if name == "." && connecting[where] != nil {
			faults = append(faults, fmt.Sprintf("%s: %s is imported as a dot", file, where))
		}
	}
	selected := func(e ast.Expr) (where, name string) {
		if s, ok := e.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				return imported[x.Name], s.Sel.Name
			}
		}
		return "", ""
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if where, name := selected(n); slices.Contains(connecting[where], name) {
				faults = append(faults, fmt.Sprintf("%s: %s.%s: only package dial opens connections", file, where, name))
			}
		case *ast.CompositeLit:
			where, name := selected(n.Type)
			needs := map[string]string{"Client": "Transport", "Transport": "DialContext"}[name]
			if where == "net/http" && needs != "" && !hasKey(n, needs) {
				faults = append(faults, fmt.Sprintf("%s: an http.%s without %s opens connections itself", file, name, needs))
			}
		}
		return true
	})
	return faults
}

func hasKey(lit *ast.CompositeLit, name string) bool {
	return slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		key, ok := pair.Key.(*ast.Ident)
		return ok && key.Name == name
	})
}

func TestConnectionRulesFindFaults(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		`package x; import "net"; var d net.Dialer`:                                                            1,
		`package x; import n "net"; var c, _ = n.Dial("tcp", "x")`:                                             1,
		`package x; import . "net"`:                                                                            1,
		`package x; import "crypto/tls"; var c, _ = tls.Dial("tcp", "x", nil)`:                                 1,
		`package x; import "net/http"; var r, _ = http.Get("x")`:                                               1,
		`package x; import "net/http"; var c = http.DefaultTransport`:                                          1,
		`package x; import "net/http"; var c = &http.Client{}`:                                                 1,
		`package x; import "net/http"; var c = &http.Client{Transport: &http.Transport{}}`:                     1,
		`package x; import "net/http"; var c = &http.Client{Transport: &http.Transport{DialContext: checked}}`: 0,
		`package x; import "net"; var l, _ = net.Listen("tcp", "x"); var c net.Conn`:                           0,
		`package x; import "lemma/dial"; var d dial.Dialer; var c, _ = d.Dial(nil, "x", 1)`:                    0,
	} {
		if faults := connectFaults("x.go", []byte(source)); len(faults) != want {
			t.Errorf("%s: %q", source, faults)
		}
	}
}

// Every package that encrypts secrets has Sealed(), which lists its columns for a
// change of keys and for doctor.
func TestEverySecretCanBeResealed(t *testing.T) {
	t.Parallel()
	listed, err := os.ReadFile("cmd/lemma/secrets_command.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range packages(t) {
		command := strings.HasPrefix(r.name(), "cmd/") || strings.HasPrefix(r.name(), "dev/")
		wiring := r.name() == "server" || command || slices.Contains(forTests, r.name())
		if !slices.Contains(r.Imports, "lemma/secrets") || wiring {
			continue
		}
		if !strings.Contains(string(listed), r.Name+".New(") {
			t.Errorf("%s imports secrets, and cmd/lemma/secrets_command.go does not list its Sealed()", r.name())
		}
	}
}

// Time zones from requests are found by lemma.Zone, which rejects names that depend
// on the machine.
func TestOnlyZoneLoadsLocations(t *testing.T) {
	t.Parallel()
	for _, r := range packages(t) {
		for _, file := range r.GoFiles {
			source, err := os.ReadFile(filepath.Join(r.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(source), "time.LoadLocation") && path.Join(r.name(), file) != "lemma/zone.go" {
				t.Errorf("%s: find zones with lemma.Zone", path.Join(r.name(), file))
			}
		}
	}
}
