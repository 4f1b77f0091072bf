package audience

import "lemma/audience/value"

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
func typeNamed(oid, category []byte) value.Type {
	if t, ok := pgTypes[oidOf(oid)]; ok {
		return t
	}
	if string(category) == "S" || string(category) == "E" {
		return value.Text
	}
	return value.Other
}
