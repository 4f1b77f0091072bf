package main

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

// eventsCommand asks a running Lemma, over HTTP.
type eventsCommand struct {
	Send eventsSendCommand `cmd:"" help:"Tell what somebody did."`
	Bulk eventsBulkCommand `cmd:"" help:"Tell many: a JSON object a line, as POST /v1/events takes it."`
	List eventsListCommand `cmd:"" help:"List what somebody did, newest first."`
}

type eventsSendCommand struct {
	talk
	Profile    string     `arg:"" help:"Who: the profile key."`
	Name       string     `arg:"" help:"What: the event's name."`
	Properties objectFlag `placeholder:"JSON" help:"More about it."`
	ID         string     `help:"Your own id of it: told twice under one id, it counts once."`
	At         time.Time  `placeholder:"TIME" help:"When it happened (RFC 3339); without it now."`
}

func (s eventsSendCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return s.with(cfg, func(c *client.Client) error {
		told, err := c.RecordEvent(ctx, client.NewEvent{ProfileKey: s.Profile, Event: s.Name, Properties: s.Properties.raw(), ID: s.ID, OccurredAt: notZero(s.At)})
		if err != nil {
			return err
		}
		return s.say(out, told, func(out io.Writer) error {
			fmt.Fprintf(out, "event %s is %s; woken %d, exited %d\n", told.ID, told.Status, told.Woken, told.Exited)
			for _, r := range told.Results {
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
	Profile string `arg:"" help:"Who: the profile key."`
	Event   string `help:"Only events of this name."`
}

func (l eventsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.with(cfg, func(c *client.Client) error {
		return list(l.listing, out, c.ListEvents(ctx, l.Profile, l.Event), "AT|EVENT|YOUR ID|ID|PROPERTIES", func(e client.Event) []string {
			return []string{stamp(e.OccurredAt), e.Event, or(e.SourceID, ""), e.ID, string(e.Properties)}
		})
	})
}

type eventsBulkCommand struct {
	talk
	File string `short:"f" default:"-" placeholder:"FILE" help:"Lines of JSON; - is the standard input."`
}

// Limits of one bulk; the API takes 1,000 events and a body of 1 MiB.
const (
	bulkEvents = 1000
	bulkBytes  = 900 << 10
	longLine   = 256 << 10
)

// bulk tells events, a lot at a time.
type bulk struct {
	api  *client.Client
	told bulkTold

	lot   []client.NewEvent
	lines []int // of the lot
	bytes int
}

// bulkTold is what came of all lines.
type bulkTold struct {
	Accepted   int         `json:"accepted"`
	Duplicates int         `json:"duplicates"`
	Invalid    int         `json:"invalid"`
	Enrolled   int         `json:"enrolled"`
	Refused    int         `json:"refused"`
	Faults     []lineFault `json:"faults"`
}

// lineFault is what is wrong with a line.
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
	return b.with(cfg, func(c *client.Client) error {
		work := &bulk{api: c, told: bulkTold{Faults: []lineFault{}}}
		broken := work.all(ctx, in)
		said := b.say(out, work.told, func(out io.Writer) error { return work.told.show(out) })
		if broken == nil && work.told.Invalid > 0 {
			broken = fmt.Errorf("%d lines are not valid; the others are told", work.told.Invalid)
		}
		return errors.Join(broken, said)
	})
}

func openLines(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	return os.Open(name)
}

func (b *bulk) all(ctx context.Context, in io.Reader) error {
	// What Lemma refuses is known a lot later than what is not even sent.
	defer func() {
		slices.SortStableFunc(b.told.Faults, func(x, y lineFault) int { return cmp.Compare(x.Line, y.Line) })
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

// add takes a line up. What is no event is not sent.
func (b *bulk) add(ctx context.Context, n int, line []byte) error {
	var e client.NewEvent
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(&e)
	if err == nil && d.More() {
		err = errors.New("there is more than one object in the line")
	}
	if err == nil && mangled(line, e) {
		err = errors.New("it is not UTF-8 text")
	}
	if err != nil {
		b.told.blame(n, lineError(err))
		return nil
	}
	if b.bytes+len(line) > bulkBytes {
		if err := b.send(ctx); err != nil {
			return err
		}
	}
	b.lot, b.lines, b.bytes = append(b.lot, e), append(b.lines, n), b.bytes+len(line)
	if len(b.lot) == bulkEvents {
		return b.send(ctx)
	}
	return nil
}

// mangled tells whether reading the line has changed its text: bytes that are
// not UTF-8, and halves of surrogate pairs, become U+FFFD.
func mangled(line []byte, e client.NewEvent) bool {
	if !utf8.Valid(line) {
		return true
	}
	said := bytes.ContainsRune(line, utf8.RuneError) || bytes.Contains(bytes.ToLower(line), []byte(`\ufffd`))
	return !said && strings.ContainsRune(e.ProfileKey+e.Event+e.ID, utf8.RuneError)
}

// lineError says what is wrong with a line that is no event.
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
		return "there is no field " + unknown
	case errors.As(err, &broken), errors.Is(err, io.ErrUnexpectedEOF):
		return "is not JSON"
	}
	return err.Error()
}

func (t *bulkTold) blame(line int, detail string) {
	t.Invalid++
	t.Faults = append(t.Faults, lineFault{line, detail})
}

// send tells the lot.
func (b *bulk) send(ctx context.Context) error {
	if len(b.lot) == 0 {
		return nil
	}
	done, err := b.api.RecordEvents(ctx, b.lot)
	if err != nil {
		return fmt.Errorf("lines %d to %d: %w", b.lines[0], b.lines[len(b.lines)-1], err)
	}
	b.told.Accepted += done.Accepted
	b.told.Duplicates += done.Duplicates
	for _, item := range done.Results {
		for _, f := range item.Errors {
			f.Pointer = strings.TrimPrefix(f.Pointer, fmt.Sprintf("/events/%d", item.Index)) // the line is the item
			b.told.Faults = append(b.told.Faults, lineFault{b.lines[item.Index], f.String()})
		}
		if len(item.Errors) > 0 {
			b.told.Invalid++
		}
		for _, r := range item.Results {
			if r.Result == "enrolled" {
				b.told.Enrolled++
			} else {
				b.told.Refused++
			}
		}
	}
	b.lot, b.lines, b.bytes = b.lot[:0], b.lines[:0], 0
	return nil
}

func (t bulkTold) show(out io.Writer) error {
	for _, f := range t.Faults {
		fmt.Fprintf(out, "line %d: %s\n", f.Line, tame(f.Detail))
	}
	_, err := fmt.Fprintf(out, "accepted %d, duplicates %d, invalid %d; enrolled %d, refused %d\n", t.Accepted, t.Duplicates, t.Invalid, t.Enrolled, t.Refused)
	return err
}
