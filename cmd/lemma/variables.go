package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// variables reads variables from the environment, else from the file of --env-file.
// It is a kong.Resolver.
type variables struct {
	env  func(string) string
	file map[string]string
}

// Validate accepts every command line.
func (s *variables) Validate(*kong.Application) error { return nil }

// Resolve returns the value of a flag that was not given.
func (s *variables) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, err := s.lookup(flag.Tag.Get("var"), flag.Tag.Has("secret"))
	if value == "" || err != nil {
		return nil, err
	}
	return value, nil
}

func (s *variables) lookup(name string, secret bool) (string, error) {
	fromFile := func(name string) string { return s.file[name] }
	for _, get := range []func(string) string{s.env, fromFile} {
		value, err := read(get, name, secret)
		if value != "" || err != nil {
			return value, err
		}
	}
	return "", nil
}

// read reads one variable. A secret may be in the file that NAME_FILE names.
func read(get func(string) string, name string, secret bool) (string, error) {
	if name == "" {
		return "", nil
	}
	value := get(name)
	if !secret || get(name+"_FILE") == "" {
		return value, nil
	}
	if value != "" {
		return "", fmt.Errorf("%s and %s_FILE are both set: set one of them", name, name)
	}
	raw, err := os.ReadFile(get(name + "_FILE"))
	if err != nil {
		return "", fmt.Errorf("read %s_FILE: %w", name, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// fillSecrets sets the settings without a flag, in a struct that embeds a Config.
func (s *variables) fillSecrets(c any) error {
	cfg := reflect.ValueOf(c).Elem().FieldByName("Config")
	for f := range fields() {
		if f.Tag.Get("kong") != "-" {
			continue
		}
		value, err := s.lookup(f.Tag.Get("var"), true)
		if err != nil {
			return err
		}
		cfg.FieldByIndex(f.Index).SetString(value)
	}
	return nil
}

// envFile is the name of a file of settings.
type envFile string

// BeforeResolve reads the file. kong calls it before it resolves the settings.
func (f envFile) BeforeResolve(s *variables, c *kong.Context, p *kong.Path) error {
	name := string(c.FlagValue(p.Flag).(envFile))
	raw, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	s.file = map[string]string{}
	for i, line := range strings.Split(string(raw), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		if !known(key) { // a misspelt name would have no effect
			return fmt.Errorf("read settings: line %d of %s must begin with the name of a setting and =", i+1, name)
		}
		s.file[key] = strings.Trim(value, `"`)
	}
	return nil
}

// known reports whether a variable is a setting.
func known(name string) bool {
	for f := range fields() {
		_, secret := f.Tag.Lookup("secret")
		if v := f.Tag.Get("var"); name == v || (secret && name == v+"_FILE") {
			return true
		}
	}
	return false
}

// fields iterates over the settings in order.
func fields() func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for field := range reflect.TypeFor[Config]().Fields() {
			if !yield(field) {
				return
			}
		}
	}
}

// helpWithVariable appends the variable of a setting to its help.
func helpWithVariable(v *kong.Value) string {
	if name := v.Tag.Get("var"); name != "" {
		return strings.TrimSuffix(v.Help, ".") + " ($" + name + ")."
	}
	return v.Help
}

// showCommand prints the settings in effect.
type showCommand struct{}

func (showCommand) run(_ context.Context, c Config, out io.Writer) error {
	for f := range fields() {
		value := fmt.Sprint(reflect.ValueOf(c).FieldByIndex(f.Index))
		if _, secret := f.Tag.Lookup("secret"); secret {
			value = redacted(value)
		}
		if _, err := fmt.Fprintf(out, "%s=%s\n", f.Tag.Get("var"), value); err != nil {
			return err
		}
	}
	return nil
}

// redacted returns "(set)" for a secret, and a URL without its password and query.
func redacted(secret string) string {
	if secret == "" {
		return ""
	}
	if u, err := url.Parse(secret); err == nil && u.Scheme != "" && u.Host+u.Path != "" {
		return u.Scheme + "://" + u.Host + u.Path
	}
	return "(set)"
}
