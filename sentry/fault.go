package sentry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	sentrygo "github.com/getsentry/sentry-go"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// fault is what is reported of a log record.
type fault struct {
	record slog.Record
	tags   map[string]string
	types  []string // of the error and those inside, the innermost last
	value  string   // what is known of the error without its text
	frames []sentrygo.Frame
}

var (
	ids   = regexp.MustCompile(`^([a-z]{2,4}_)?[0-9a-z_-]*[0-9][0-9a-z_-]*$`)
	codes = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)
)

// shortestID is the length of the shortest id: a number of a customer is shorter.
const shortestID = 20

func newFault(record slog.Record, attrs []slog.Attr, grouped bool) *fault {
	f := &fault{record: record, tags: map[string]string{}}
	for _, a := range attrs {
		f.add(a)
	}
	record.Attrs(func(a slog.Attr) bool {
		if !grouped {
			f.add(a)
		}
		return true
	})
	return f
}

// add adds what may be reported of an attribute.
func (f *fault) add(a slog.Attr) {
	value := a.Value.Resolve()
	text := value.String()
	switch value.Kind() {
	case slog.KindInt64, slog.KindUint64, slog.KindFloat64, slog.KindBool, slog.KindDuration, slog.KindTime:
		f.tags[a.Key] = text
	case slog.KindAny:
		if err, ok := value.Any().(error); ok {
			f.addError(err)
			return
		}
		f.addText(a.Key, fmt.Sprint(value.Any()))
	case slog.KindString:
		f.addText(a.Key, text)
	}
}

func (f *fault) addText(key, text string) {
	isID := strings.HasSuffix(key, "_id") && len(text) >= shortestID && ids.MatchString(text)
	isCode := slices.Contains([]string{"code", "reason", "carrier", "kind", "listener", "constraint"}, key) && codes.MatchString(text)
	if isID || isCode {
		f.tags[key] = text
	}
}

// addError adds the types of an error, and what is known to contain no data: the codes of
// Postgres and of Lemma, and the place of a panic.
func (f *fault) addError(err error) {
	f.types = typesOf(err, nil)
	if known, ok := errors.AsType[*pgconn.PgError](err); ok {
		f.value = "SQLSTATE " + known.Code
		f.addText("constraint", known.ConstraintName)
	}
	if known, ok := errors.AsType[*lemma.Error](err); ok {
		f.value = known.Code
	}
	if known, ok := errors.AsType[*net.OpError](err); ok {
		f.value = known.Op
	}
	if errors.Is(err, context.DeadlineExceeded) {
		f.value = "deadline exceeded"
	}
	if known, ok := errors.AsType[*lemma.Panic](err); ok {
		f.addPanic(known)
	}
}

// addPanic adds the stack. The text of a panic is reported only if the runtime wrote it.
func (f *fault) addPanic(p *lemma.Panic) {
	f.types, f.value = append(f.types, fmt.Sprintf("%T", p.Value)), ""
	if err, ok := p.Value.(runtime.Error); ok {
		f.value = err.Error()
	}
	f.frames = framesOf(string(p.Stack))
}

// typesOf are the types of an error and of all inside it, without the wrappers of fmt
// and errors.
func typesOf(err error, types []string) []string {
	if name := reflect.TypeOf(err).String(); !strings.HasPrefix(name, "*fmt.") && !strings.HasPrefix(name, "*errors.") {
		types = append(types, name)
	}
	switch inside := err.(type) { //nolint:errorlint // It visits each error by itself.
	case interface{ Unwrap() error }:
		if next := inside.Unwrap(); next != nil {
			return typesOf(next, types)
		}
	case interface{ Unwrap() []error }:
		for _, next := range inside.Unwrap() {
			types = typesOf(next, types)
		}
	}
	return types
}

// framesOf reads the functions, files and lines of a stack, as debug.Stack writes it,
// without the arguments and what has recovered the panic. Sentry lists the outermost first.
func framesOf(stack string) (frames []sentrygo.Frame) {
	lines := strings.Split(stack, "\n")
	for i := 1; i+1 < len(lines); i += 2 {
		call, place := lines[i], strings.TrimSpace(lines[i+1])
		switch {
		case strings.HasPrefix(call, "panic("):
			frames = nil
			continue
		case strings.HasPrefix(call, "created by "):
			continue
		}
		if end := strings.LastIndex(call, "("); end > 0 {
			call = call[:end]
		}
		place, _, _ = strings.Cut(place, " ")
		colon := strings.LastIndex(place, ":")
		if colon < 0 {
			continue
		}
		line, _ := strconv.Atoi(place[colon+1:]) // 0: unknown
		dot := strings.LastIndex(call, "/") + 1
		dot += max(0, strings.Index(call[dot:], "."))
		frames = append(frames, sentrygo.Frame{Module: call[:dot], Function: strings.TrimPrefix(call[dot:], "."),
			Filename: place[strings.LastIndex(place, "/")+1 : colon], Lineno: line, InApp: strings.HasPrefix(call, "lemma")})
	}
	slices.Reverse(frames)
	return frames
}

// group is what equal errors have in common.
func (f *fault) group() string {
	parts := append([]string{f.record.Message, f.value}, f.types...)
	for _, frame := range slices.Backward(f.frames) {
		if frame.InApp {
			parts = append(parts, frame.Module+"."+frame.Function, strconv.Itoa(frame.Lineno))
			break
		}
	}
	return strings.Join(parts, "\n")
}

// event is the report.
func (f *fault) event(leftOut int) *sentrygo.Event {
	e := sentrygo.NewEvent()
	e.Level, e.Message, e.Timestamp, e.Logger = sentrygo.LevelError, f.record.Message, f.record.Time, "lemma"
	e.Tags, e.Fingerprint = f.tags, strings.Split(f.group(), "\n")
	if leftOut > 0 {
		e.Tags["left_out"] = strconv.Itoa(leftOut)
	}
	if len(f.types) > 0 || f.value != "" {
		one := sentrygo.Exception{Type: f.record.Message, Value: strings.TrimSpace(strings.Join(f.types, " ") + " " + f.value)}
		if len(f.frames) > 0 {
			one.Stacktrace = &sentrygo.Stacktrace{Frames: f.frames}
		}
		e.Exception = []sentrygo.Exception{one}
	}
	return e
}
