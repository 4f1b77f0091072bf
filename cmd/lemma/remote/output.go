// Package remote is the command line of a running Lemma: the commands flows,
// events, enrollments and providers. They call the HTTP API with package client and print
// what it returns, as tables or as JSON. They need no access to the database.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"lemma/client"
)

// Config names the Lemma to call.
type Config struct{ URL, APIKey string }

// Command is a subcommand of Flows, Events or Enrollments.
type Command interface {
	run(ctx context.Context, cfg Config, out io.Writer) error
}

// Run runs a command and prints to out.
func Run(ctx context.Context, c Command, cfg Config, out io.Writer) error {
	return c.run(ctx, cfg, out)
}

// output is how a command prints its result.
type output struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// call calls f with a client for the API.
func (o output) call(cfg Config, f func(*client.Client) error) error {
	if cfg.APIKey == "" {
		return errors.New("LEMMA_API_KEY is not set: create a key with `lemma keys create`")
	}
	c, err := client.New(cfg.URL, cfg.APIKey, client.UserAgent("lemma-command"))
	if err != nil {
		return fmt.Errorf("LEMMA_URL: %w", err)
	}
	return f(c)
}

// print prints a result as JSON, or as show does.
func (o output) print(out io.Writer, result any, show func(io.Writer) error) error {
	if !o.JSON {
		return show(out)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(result)
}

// listing is a command that prints a list.
type listing struct {
	output
	Limit int `default:"50" help:"Maximum number of rows; 0 for all."`
}

// list prints a list with one row for each element.
func list[T any](l listing, out io.Writer, all iter.Seq2[T, error], head string, row func(T) []string) error {
	found, err := client.Collect(all, max(l.Limit, 0))
	if err != nil {
		return err
	}
	return l.print(out, found, func(out io.Writer) error { return Table(out, head, found, row) })
}

// Table prints rows in columns. The names of the columns are separated by "|".
func Table[T any](out io.Writer, head string, all []T, row func(T) []string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(head, "|", "\t"))
	for _, one := range all {
		cells := row(one)
		for i := range cells {
			cells[i] = Printable(cells[i])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// printFields prints pairs of a name and a value, without those that have no value.
func printFields(out io.Writer, pairs ...string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", pairs[i], Printable(pairs[i+1]))
		}
	}
	return t.Flush()
}

// Printable replaces control characters, which could change the terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return '·'
		}
		return r
	}, text)
}

// or returns the text of a value, or another text if there is no value.
func or[T any](text *T, instead string) string {
	if text == nil {
		return instead
	}
	return fmt.Sprint(*text)
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func stampOr(at *time.Time, instead string) string {
	if at == nil {
		return instead
	}
	return stamp(*at)
}

// tally formats counts, in the order of their names.
func tally(counts map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}

// compact formats an object as JSON on one line, and no object as an empty text.
func compact(value map[string]any) string {
	if len(value) == 0 {
		return ""
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// objectFlag is a flag with a JSON object; empty for none.
type objectFlag string

// Validate is called by kong.
func (o objectFlag) Validate() error {
	var object map[string]any
	if o != "" && (json.Unmarshal([]byte(o), &object) != nil || object == nil) {
		return errors.New(`must be a JSON object, such as '{"plan": "pro"}'`)
	}
	return nil
}

func (o objectFlag) raw() json.RawMessage {
	if o == "" {
		return nil
	}
	return json.RawMessage(o)
}

// notZero returns a time for the API: nil for a time that was not given.
func notZero(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}
