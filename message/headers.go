package message

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"lemma"
)

// MaxHeader is the most characters of a header's value, as written and as
// rendered. With the name in front they fit one line of 998 bytes (RFC 5322,
// 2.1.1), unless they are encoded, which folds them.
const MaxHeader = 900

// Headers are the headers of an envelope, made ready: their values are Liquid,
// plain like a subject. They never change and are safe for concurrent use.
type Headers struct {
	compiled *Compiled // of what all values share; its own parts are not used
	values   []headerValue
	fixed    [][2]string // all headers, where no value has Liquid in it
}

// headerValue is one header: its Liquid, or a text that is the same for everybody.
type headerValue struct {
	name string
	text string
	part *compiledPart // nil: the text
}

// CheckHeaders answers all faults of headers at once, at /headers/{name}, or the
// variables that their values use, sorted. Names and line breaks are
// lemma.Envelope's to check.
func CheckHeaders(headers map[string]string) (variables []string, err error) {
	used := map[string]bool{}
	var faults []lemma.Field
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		p, value := headerPart(name), headers[name]
		if lemma.HasLiquid(value) {
			faults = append(faults, inspectPart(p, value, used)...)
		} else if utf8.RuneCountInString(value) > MaxHeader {
			faults = append(faults, lemma.Field{Pointer: p.pointer, Code: "too_large", Detail: string(errHeaderSize)})
		}
	}
	if len(faults) > 0 {
		return nil, &lemma.Error{Kind: lemma.Invalid, Code: "template_invalid", Message: "the headers are not valid", Fields: faults}
	}
	return slices.Sorted(maps.Keys(used)), nil
}

func headerPart(name string) part {
	return part{pointer: lemma.HeaderPointer(name), limit: utf8.UTFMax * MaxHeader, source: utf8.UTFMax * MaxHeader}
}

// CompileHeaders makes headers ready. It refuses what CheckHeaders refuses.
func CompileHeaders(headers map[string]string) (*Headers, error) {
	variables, err := CheckHeaders(headers)
	if err != nil {
		return nil, err
	}
	h := &Headers{compiled: &Compiled{variables: variables, names: slices.Clone(variables)}}
	h.compiled.scratch.New = func() any { return &scratch{values: make([]value, len(variables))} }
	liquid := false
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		v := headerValue{name: name, text: headers[name]}
		if lemma.HasLiquid(v.text) {
			made, err := h.compiled.compilePart(headerPart(name), v.text)
			if err != nil {
				return nil, err
			}
			v.part, liquid = &made, true
		}
		h.values = append(h.values, v)
		h.fixed = append(h.fixed, [2]string{name, v.text})
	}
	if liquid {
		h.fixed = nil
	}
	return h, nil
}

// Variables are the names that the values use, sorted.
func (h *Headers) Variables() []string { return slices.Clone(h.compiled.variables) }

// Render makes the headers for one person, sorted by name, as Compiled.Render
// makes the message. A value of Liquid that comes out blank leaves its header
// out; one with a line break or NUL, or too long for a header, is an error. The
// caller does not change the answer.
func (h *Headers) Render(payload string) ([][2]string, error) {
	if h.fixed != nil || len(h.values) == 0 {
		return h.fixed, nil
	}
	s := h.compiled.scratch.Get().(*scratch)
	defer h.compiled.release(s)
	if err := read(s.values, h.compiled.variables, payload); err != nil {
		return nil, failed("", 0, err)
	}
	made := make([][2]string, 0, len(h.values))
	for i := range h.values {
		v := &h.values[i]
		text := v.text
		if v.part != nil {
			var err error
			if text, err = h.compiled.render(v.part, s); err != nil {
				return nil, err
			}
			if text = strings.Trim(text, " \t"); text == "" {
				continue
			}
			if fault := checkHeader(text); fault != "" {
				return nil, failed(v.part.pointer, 1, fault)
			}
		}
		made = append(made, [2]string{v.name, text})
	}
	return made, nil
}

const errHeaderSize = refused("the header has more than 900 characters")

// checkHeader tells why a rendered text cannot be a header's value, or nothing.
// NUL is refused in every part.
func checkHeader(text string) refused {
	if strings.ContainsAny(text, "\r\n") {
		return "the header came out with a line break in it"
	}
	if utf8.RuneCountInString(text) > MaxHeader {
		return errHeaderSize
	}
	return ""
}
