package main

import (
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

// talk is how a command that asks a running Lemma answers.
type talk struct {
	JSON bool `name:"json" help:"Print the answer as JSON."`
}

// with hands a command the Lemma that the settings name.
func (t talk) with(cfg Config, ask func(*client.Client) error) error {
	if cfg.APIKey == "" {
		return errors.New("LEMMA_API_KEY is not set: `lemma keys create` makes a key")
	}
	c, err := client.New(cfg.URL, cfg.APIKey, client.UserAgent("lemma-command"))
	if err != nil {
		return fmt.Errorf("LEMMA_URL: %w", err)
	}
	return ask(c)
}

// say prints an answer: for programs, or for people.
func (t talk) say(out io.Writer, answer any, show func(io.Writer) error) error {
	if !t.JSON {
		return show(out)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(answer)
}

// listing is a command that prints a list.
type listing struct {
	talk
	Limit int `default:"50" help:"How many at most; 0 is all."`
}

// list prints a list, a row for each of it.
func list[T any](l listing, out io.Writer, all iter.Seq2[T, error], head string, row func(T) []string) error {
	found, err := client.Collect(all, max(l.Limit, 0))
	if err != nil {
		return err
	}
	return l.say(out, found, func(out io.Writer) error { return table(out, head, found, row) })
}

// table prints rows under a head, whose words are separated by "|".
func table[T any](out io.Writer, head string, all []T, row func(T) []string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(head, "|", "\t"))
	for _, one := range all {
		cells := row(one)
		for i := range cells {
			cells[i] = tame(cells[i])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// facts prints pairs of a word and what it is, without the pairs that say nothing.
func facts(out io.Writer, pairs ...string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", pairs[i], tame(pairs[i+1]))
		}
	}
	return t.Flush()
}

// tame keeps what somebody else wrote from steering the terminal.
func tame(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '·'
		}
		return r
	}, text)
}

// or is a text that may not be there.
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

// tally is counts in words, in the order of their names.
func tally(counts map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}

// compact is JSON on one line, empty for none.
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

// objectFlag is a flag that is a JSON object; empty is none.
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

// notZero is a time for the API: nil when it was not given.
func notZero(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}
