package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"lemma/client"
)

// Events are the commands for events.
type Events struct {
	Send eventsSendCommand `cmd:"" help:"Record an event of a profile."`
	Bulk eventsBulkCommand `cmd:"" help:"Record many events: one JSON object per line, as in POST /v1/events."`
	List eventsListCommand `cmd:"" help:"List the events of a profile, newest first."`
}

type eventsSendCommand struct {
	output
	Profile    string     `arg:"" help:"The profile key."`
	Name       string     `arg:"" help:"The name of the event."`
	Properties objectFlag `placeholder:"JSON" help:"Properties of the event."`
	SourceID   string     `help:"Your id of the event: an id that is recorded already is a duplicate."`
	At         time.Time  `placeholder:"TIME" help:"When it happened (RFC 3339); default: now."`
}

func (s eventsSendCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return s.call(cfg, func(c *client.Client) error {
		recorded, err := c.RecordEvent(ctx,
			client.NewEvent{ProfileKey: s.Profile, Event: s.Name, Properties: s.Properties.raw(), SourceID: s.SourceID, OccurredAt: notZero(s.At)})
		if err != nil {
			return err
		}
		return s.print(out, recorded, func(out io.Writer) error {
			fmt.Fprintf(out, "event %s is %s; resumed %d, exited %d\n", recorded.ID, recorded.Status, recorded.Resumed, recorded.Exited)
			for _, r := range recorded.Results {
				if err := showResult(out, r); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

type eventsListCommand struct {
	listing
	Profile string `arg:"" help:"The profile key."`
	Event   string `help:"Only events of this name."`
}

func (l eventsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.call(cfg, func(c *client.Client) error {
		return list(l.listing, out, c.ListEvents(ctx, l.Profile, l.Event), "AT|EVENT|YOUR ID|ID|PROPERTIES", func(e client.Event) []string {
			return []string{stamp(e.OccurredAt), e.Event, or(e.SourceID, ""), e.ID, string(e.Properties)}
		})
	})
}

type eventsBulkCommand struct {
	output
	File string `short:"f" default:"-" placeholder:"FILE" help:"The lines of JSON; - reads standard input."`
}

// Limits of one request; the API accepts 1,000 events and a body of 1 MiB.
const (
	bulkEvents = 1000
	bulkBytes  = 900 << 10
	longLine   = 256 << 10
)

// bulk records events, one request for each chunk.
type bulk struct {
	api *client.Client
	sum bulkResult

	chunk []client.NewEvent
	lines []int // of the chunk
	bytes int
}

// bulkResult is the result for all lines.
type bulkResult struct {
	Accepted   int         `json:"accepted"`
	Duplicates int         `json:"duplicates"`
	Invalid    int         `json:"invalid"`
	Enrolled   int         `json:"enrolled"`
	Refused    int         `json:"refused"`
	Faults     []lineFault `json:"faults"`
}

// lineFault is the fault of a line.
type lineFault struct {
	Line   int    `json:"line"`
	Detail string `json:"detail"`
}

func (b eventsBulkCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	in, err := openLines(b.File)
	if err != nil {
		return err
	}
	defer in.Close()
	return b.call(cfg, func(c *client.Client) error {
		work := &bulk{api: c, sum: bulkResult{Faults: []lineFault{}}}
		failed := work.all(ctx, in)
		printed := b.print(out, work.sum, func(out io.Writer) error { return work.sum.show(out) })
		if failed == nil && work.sum.Invalid > 0 {
			failed = fmt.Errorf("%d lines are not valid; the others are recorded", work.sum.Invalid)
		}
		return errors.Join(failed, printed)
	})
}

func openLines(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	return os.Open(name)
}

func (b *bulk) all(ctx context.Context, in io.Reader) error {
	// The errors of the API come a chunk later than those found here.
	defer func() {
		slices.SortStableFunc(b.sum.Faults, func(x, y lineFault) int { return cmp.Compare(x.Line, y.Line) })
	}()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longLine)
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := b.add(ctx, n, lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return errors.Join(fmt.Errorf("line %d: %w", n+1, err), b.send(ctx))
	}
	return b.send(ctx)
}

// add adds a line to the chunk, if it is an event.
func (b *bulk) add(ctx context.Context, n int, line []byte) error {
	var e client.NewEvent
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(&e)
	if err == nil && d.More() {
		err = errors.New("has more than one object")
	}
	if err == nil && mangled(line, e) {
		err = errors.New("is not UTF-8 text")
	}
	if err != nil {
		b.sum.blame(n, lineError(err))
		return nil
	}
	if b.bytes+len(line) > bulkBytes {
		if err := b.send(ctx); err != nil {
			return err
		}
	}
	b.chunk, b.lines, b.bytes = append(b.chunk, e), append(b.lines, n), b.bytes+len(line)
	if len(b.chunk) == bulkEvents {
		return b.send(ctx)
	}
	return nil
}

// mangled reports whether decoding has changed the text of the line: bytes that
// are not UTF-8, and lone surrogates, become U+FFFD.
func mangled(line []byte, e client.NewEvent) bool {
	if !utf8.Valid(line) {
		return true
	}
	written := bytes.ContainsRune(line, utf8.RuneError) || bytes.Contains(bytes.ToLower(line), []byte(`\ufffd`))
	return !written && strings.ContainsRune(e.ProfileKey+e.Event+e.SourceID, utf8.RuneError)
}

// lineError describes why a line is not an event.
func lineError(err error) string {
	var wrong *json.UnmarshalTypeError
	var broken *json.SyntaxError
	var noTime *time.ParseError
	unknown, isUnknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return "must be an object, such as " + `{"profile_key": "c1", "event": "signed_up"}`
	case errors.As(err, &wrong):
		return "/" + wrong.Field + ": must be a string"
	case errors.As(err, &noTime), strings.HasPrefix(err.Error(), "Time."):
		return "/occurred_at: must be a time such as 2026-12-24T09:00:00Z (RFC 3339)"
	case isUnknown:
		return "unknown field " + unknown
	case errors.As(err, &broken), errors.Is(err, io.ErrUnexpectedEOF):
		return "is not JSON"
	}
	return err.Error()
}

func (t *bulkResult) blame(line int, detail string) {
	t.Invalid++
	t.Faults = append(t.Faults, lineFault{line, detail})
}

// send records the chunk. Events that are overloaded are sent again; at least one is
// recorded each time.
func (b *bulk) send(ctx context.Context) error {
	for len(b.chunk) > 0 {
		if err := b.sendOnce(ctx); err != nil {
			return err
		}
	}
	b.bytes = 0
	return nil
}

// sendOnce records the chunk and leaves what is to be sent again.
func (b *bulk) sendOnce(ctx context.Context) error {
	done, err := b.api.RecordEvents(ctx, b.chunk)
	if err != nil {
		return fmt.Errorf("lines %d to %d: %w", b.lines[0], b.lines[len(b.lines)-1], err)
	}
	b.sum.Accepted += done.Counts.Accepted
	b.sum.Duplicates += done.Counts.Duplicate
	var events []client.NewEvent
	var lines []int
	for _, item := range done.Results {
		if item.Status == "overloaded" {
			events, lines = append(events, b.chunk[item.Index]), append(lines, b.lines[item.Index])
			continue
		}
		for _, f := range item.Errors {
			f.Pointer = strings.TrimPrefix(f.Pointer, fmt.Sprintf("/events/%d", item.Index)) // the line is the item
			b.sum.Faults = append(b.sum.Faults, lineFault{b.lines[item.Index], f.String()})
		}
		if len(item.Errors) > 0 {
			b.sum.Invalid++
		}
		for _, r := range item.Results {
			if r.Status == "enrolled" {
				b.sum.Enrolled++
			} else {
				b.sum.Refused++
			}
		}
	}
	if len(events) == len(b.chunk) {
		return fmt.Errorf("lines %d to %d: none of the events is recorded", b.lines[0], b.lines[len(b.lines)-1])
	}
	b.chunk, b.lines = events, lines
	return nil
}

func (t bulkResult) show(out io.Writer) error {
	for _, f := range t.Faults {
		fmt.Fprintf(out, "line %d: %s\n", f.Line, Printable(f.Detail))
	}
	_, err := fmt.Fprintf(out, "accepted %d, duplicates %d, invalid %d; enrolled %d, refused %d\n", t.Accepted, t.Duplicates, t.Invalid,
		t.Enrolled, t.Refused)
	return err
}
