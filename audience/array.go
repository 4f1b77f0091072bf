package audience

import (
	"bytes"
	"strings"
)

// A Postgres array has the type of its elements and "[]", in any number of
// dimensions: text[], integer[]. It becomes a JSON list, nested like the array.
const listSuffix = "[]"

// listOf is the type of arrays whose elements are of type t.
func listOf(t Type) Type { return t + listSuffix }

// element returns the type of the elements of a list, or false for other types.
func (t Type) element() (Type, bool) {
	name, ok := strings.CutSuffix(string(t), listSuffix)
	return Type(name), ok
}

// maxDimensions is Postgres's own limit (MAXDIM).
const maxDimensions = 6

// appendList writes the text form of a Postgres array as a JSON list: array_out's
// {a,"b c",NULL}, or with bounds [0:1]={a,b}. Other forms are written as text.
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

// listReader converts the text of an array to JSON.
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

// list reads {...} with at most that many dimensions.
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

// bare reads an element without quotes. Only here NULL is null.
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

// quoted reads an element in quotes, with backslash escapes.
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

// pgTypeQuery reads types, and the base types of domains. Only arrays whose text
// form has commas are lists: box[] has semicolons.
const pgTypeQuery = `
select t.oid::text, b.oid::text, b.typcategory::text, v.oid::text, v.typcategory::text
  from pg_catalog.pg_type t
  join pg_catalog.pg_type b on b.oid = case t.typtype when 'd' then t.typbasetype else t.oid end
  left join pg_catalog.pg_type e on e.oid = b.typelem and b.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc and e.typdelim = ','
  left join pg_catalog.pg_type v on v.oid = case e.typtype when 'd' then e.typbasetype else e.oid end
 where t.oid = any($1::oid[])`

// typeNamed returns the type of a base type, by its oid or its category.
func typeNamed(oid, category []byte) Type {
	if t, ok := pgTypes[oidOf(oid)]; ok {
		return t
	}
	if string(category) == "S" || string(category) == "E" {
		return Text
	}
	return Other
}
