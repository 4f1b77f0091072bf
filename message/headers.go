package message

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"lemma"
	"lemma/mail"
)

// MaxHeader is the maximum length of a header's value in characters, as written and
// as rendered. With its name it fits one line of 998 bytes (RFC 5322, 2.1.1). An
// encoded value is folded.
const MaxHeader = 900

// header is one header of an envelope: Liquid, or a fixed text.
type header struct {
	name, text string
	liquid     bool
}

// CheckHeaders returns all faults of headers at once, at /headers/{name}, or the
// variables of their values, as Check returns them. mail.Envelope checks names and line breaks.
func CheckHeaders(headers map[string]string) (variables []string, err error) {
	used, err := checkHeaders(headers)
	return columns(used), err
}

func checkHeaders(headers map[string]string) (variables []string, err error) {
	used := map[string]bool{}
	var faults []lemma.Field
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		p, value := headerPart(name), headers[name]
		if mail.HasLiquid(value) {
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
	return part{pointer: mail.HeaderPointer(name), limit: utf8.UTFMax * MaxHeader, source: utf8.UTFMax * MaxHeader}
}

// WithHeaders compiles a content with the headers of an envelope, whose values are
// Liquid, plain like a subject. It returns the faults of CheckHeaders. A header
// whose rendered value is blank is omitted. A value with a line break or NUL, or
// one that is too long, is an error of the rendering.
func (c *Compiled) WithHeaders(headers map[string]string) (*Compiled, error) {
	used, err := checkHeaders(headers)
	if err != nil || len(headers) == 0 {
		return c, err
	}
	all := make([]header, 0, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		all = append(all, header{name, headers[name], mail.HasLiquid(headers[name])})
	}
	used = append(used, c.variables...)
	slices.Sort(used)
	return compileAll(c.workspace, c.content, slices.Compact(used), all)
}

// headersOf returns the headers. Their rendered texts follow those of the content.
func (c *Compiled) headersOf(texts []string) ([][2]string, error) {
	if len(c.parts) == c.own {
		return c.fixed, nil
	}
	made := make([][2]string, 0, len(c.headers))
	next := c.own
	for _, h := range c.headers {
		text := h.text
		if h.liquid {
			text = strings.Trim(texts[next], " \t")
			if fault := checkHeader(text); fault != "" {
				return nil, failed(c.parts[next].pointer, 1, fault)
			}
			if next++; text == "" {
				continue
			}
		}
		made = append(made, [2]string{h.name, text})
	}
	return made, nil
}

func hasLineBreak(text string) bool {
	return strings.IndexByte(text, '\n') >= 0 || strings.IndexByte(text, '\r') >= 0
}

const errHeaderSize = refused("the header must have at most 900 characters")

// checkHeader returns why a rendered text cannot be the value of a header, or "".
// NUL is refused in every part.
func checkHeader(text string) refused {
	if hasLineBreak(text) {
		return "the rendered header contains a line break"
	}
	if len(text) > MaxHeader && utf8.RuneCountInString(text) > MaxHeader {
		return errHeaderSize
	}
	return ""
}
