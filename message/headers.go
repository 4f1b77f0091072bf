package message

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"lemma"
	"lemma/mail"
)

// MaxHeader is the most characters of a header's value, as written and as
// rendered. With the name in front they fit one line of 998 bytes (RFC 5322,
// 2.1.1), unless they are encoded, which folds them.
const MaxHeader = 900

// header is one header of an envelope: its Liquid, or a text that is the same
// for everybody.
type header struct {
	name, text string
	liquid     bool
}

// CheckHeaders returns all faults of headers at once, at /headers/{name}, or the
// variables that their values use, sorted. Names and line breaks are
// mail.Envelope's to check.
func CheckHeaders(headers map[string]string) (variables []string, err error) {
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

// WithHeaders makes a content ready together with the headers of an envelope,
// whose values are Liquid, plain like a subject. It refuses what CheckHeaders
// refuses. A value of Liquid that comes out blank leaves its header out; one with
// a line break or NUL, or too long for a header, ends the rendering.
func (c *Compiled) WithHeaders(headers map[string]string) (*Compiled, error) {
	used, err := CheckHeaders(headers)
	if err != nil || len(headers) == 0 {
		return c, err
	}
	all := make([]header, 0, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		all = append(all, header{name, headers[name], mail.HasLiquid(headers[name])})
	}
	used = append(used, c.variables...)
	slices.Sort(used)
	return compileAll(c.content, slices.Compact(used), all)
}

// headersOf are the headers, whose rendered texts are behind those of the content.
func (c *Compiled) headersOf(texts []string) ([][2]string, error) {
	if len(c.parts) == contentParts {
		return c.fixed, nil
	}
	made := make([][2]string, 0, len(c.headers))
	next := contentParts
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

// contentParts are the subject, the HTML and the text.
const contentParts = 3

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
