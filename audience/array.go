package audience

import (
	"bytes"
	"strings"
)

// A Postgres array has the type of its elements and "[]", in any number of
// dimensions: text[], integer[]. It becomes a JSON list, nested as the array is.
const listSuffix = "[]"

// listOf is the type of arrays whose elements are of type t.
func listOf(t Type) Type { return t + listSuffix }

// element is the type of a list's elements, or false for what is no list.
func (t Type) element() (Type, bool) {
	name, ok := strings.CutSuffix(string(t), listSuffix)
	return Type(name), ok
}

// maxDimensions is Postgres's own limit (MAXDIM).
const maxDimensions = 6

// appendList writes the text form of a Postgres array (array_out: {a,"b c",NULL},
// with its bounds in front where they are unusual: [0:1]={a,b}) as a JSON list.
// What has another form is written as text.
func appendList(dst []byte, element Type, text []byte) []byte {
	r := listReader{text: withoutBounds(text), element: element, dst: dst}
	if r.list(maxDimensions) && r.at == len(r.text) {
		return r.dst
	}
	return appendString(dst, text)
}

func withoutBounds(text []byte) []byte {
	if len(text) == 0 || text[0] != '[' {
		return text
	}
	bounds, list, ok := bytes.Cut(text, []byte("="))
	if !ok || len(bytes.Trim(bounds, "[]:-0123456789")) > 0 {
		return text
	}
	return list
}

// listReader turns an array's text into JSON from left to right.
type listReader struct {
	text    []byte
	at      int
	element Type
	dst     []byte
}

func (r *listReader) take(c byte) bool {
	if r.at < len(r.text) && r.text[r.at] == c {
		r.at++
		return true
	}
	return false
}

// list reads {...} with at most so many dimensions.
func (r *listReader) list(dimensions int) bool {
	if dimensions == 0 || !r.take('{') {
		return false
	}
	r.dst = append(r.dst, '[')
	if r.take('}') {
		r.dst = append(r.dst, ']')
		return true
	}
	for r.item(dimensions) {
		if r.take('}') {
			r.dst = append(r.dst, ']')
			return true
		}
		if !r.take(',') {
			return false
		}
		r.dst = append(r.dst, ',')
	}
	return false
}

func (r *listReader) item(dimensions int) bool {
	if r.at == len(r.text) {
		return false
	}
	switch r.text[r.at] {
	case '{':
		return r.list(dimensions - 1)
	case '"':
		return r.quoted()
	}
	return r.bare()
}

// bare reads an element without quotes; NULL is null only here.
func (r *listReader) bare() bool {
	n := bytes.IndexAny(r.text[r.at:], `,{}"\`)
	if n <= 0 {
		return false
	}
	value := r.text[r.at : r.at+n]
	r.at += n
	if string(value) == "NULL" {
		value = nil
	}
	r.dst = appendValue(r.dst, r.element, value)
	return true
}

// quoted reads an element in quotes, in which a backslash escapes what follows.
func (r *listReader) quoted() bool {
	value := make([]byte, 0, 32)
	for r.at++; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; c {
		case '"':
			r.at++
			r.dst = appendValue(r.dst, r.element, value)
			return true
		case '\\':
			if r.at++; r.at == len(r.text) {
				return false
			}
			value = append(value, r.text[r.at])
		default:
			value = append(value, c)
		}
	}
	return false
}

// pgLearn reads types through the domains that they are or consist of. Arrays
// are those whose text form is array_out's, with commas: box[] has semicolons.
const pgLearn = `
select t.oid::text, b.oid::text, b.typcategory::text, v.oid::text, v.typcategory::text
  from pg_catalog.pg_type t
  join pg_catalog.pg_type b on b.oid = case t.typtype when 'd' then t.typbasetype else t.oid end
  left join pg_catalog.pg_type e on e.oid = b.typelem and b.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc and e.typdelim = ','
  left join pg_catalog.pg_type v on v.oid = case e.typtype when 'd' then e.typbasetype else e.oid end
 where t.oid = any($1::oid[])`

// typeNamed is the type of a base type: a built-in one, or by its category.
func typeNamed(oid, category []byte) Type {
	if t, ok := pgTypes[oidOf(oid)]; ok {
		return t
	}
	if string(category) == "S" || string(category) == "E" {
		return Text
	}
	return Other
}
