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
	env  environment
	file map[string]string
}

// environment returns a variable, and whether it is set, as os.LookupEnv does.
type environment func(name string) (value string, set bool)

// Validate accepts every command line.
func (s *variables) Validate(*kong.Application) error { return nil }

// Resolve returns the value of a flag that was not given. An empty variable is a value if the
// setting may be empty. Else it is as if it was not set.
func (s *variables) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, set, err := s.lookup(flag.Tag.Get("var"), flag.Tag.Has("secret"), mayBeEmpty(flag.Target.Kind(), flag.Tag.Has))
	if !set || err != nil {
		return nil, err
	}
	return value, nil
}

// mayBeEmpty is true of settings that are none when empty: texts without a default, and those
// with the tag "empty".
func mayBeEmpty(kind reflect.Kind, has func(tag string) bool) bool {
	return kind == reflect.String && (!has("default") || has("empty"))
}

func (s *variables) lookup(name string, secret, mayBeEmpty bool) (value string, set bool, err error) {
	fromFile := func(name string) (string, bool) { value, set := s.file[name]; return value, set }
	for _, get := range []environment{s.env, fromFile} {
		value, set, err := read(get, name, secret)
		if err != nil || value != "" || set && mayBeEmpty {
			return value, set, err
		}
	}
	return "", false, nil
}

// read reads one variable. A secret may be in the file that NAME_FILE names.
func read(get environment, name string, secret bool) (value string, set bool, err error) {
	if name == "" {
		return "", false, nil
	}
	value, set = get(name)
	file := ""
	if secret {
		file, _ = get(name + "_FILE")
	}
	switch {
	case file == "":
		return value, set, nil
	case value != "":
		return "", false, fmt.Errorf("%s and %s_FILE are both set: set one of them", name, name)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", false, fmt.Errorf("read %s_FILE: %w", name, err)
	}
	return strings.TrimSpace(string(raw)), true, nil
}

// fillSecrets sets the settings without a flag, in a struct that embeds a Config.
func (s *variables) fillSecrets(c any) error {
	cfg := reflect.ValueOf(c).Elem().FieldByName("Config")
	for f := range fields() {
		if f.Tag.Get("kong") != "-" {
			continue
		}
		value, _, err := s.lookup(f.Tag.Get("var"), true, true)
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
		if kind, secret := f.Tag.Lookup("secret"); secret {
			value = redacted(value, kind == "url")
		}
		if _, err := fmt.Fprintf(out, "%s=%s\n", f.Tag.Get("var"), value); err != nil {
			return err
		}
	}
	return nil
}

// redacted returns "(set)" for a secret. One that is a URL is shown without its user,
// password and query.
func redacted(secret string, isURL bool) string {
	if secret == "" {
		return ""
	}
	if u, err := url.Parse(secret); isURL && err == nil && u.Scheme != "" && u.Host+u.Path != "" {
		return u.Scheme + "://" + u.Host + u.Path
	}
	return "(set)"
}
