package page

import (
	"time"

	"github.com/google/uuid"
)

// ByID is the order of creation of rows whose id is a UUIDv7.
func ByID[T any](column string, of func(T) uuid.UUID) Order[T] {
	return Order[T]{{Column: column, Type: UUID, Of: func(row T) any { return of(row) }}}
}

// ByName is the order of names. Rows of one name follow each other by their ids.
func ByName[T any](column string, of func(T) string, id string, idOf func(T) uuid.UUID) Order[T] {
	return append(Order[T]{{Column: column, Type: Text, Of: func(row T) any { return of(row) }}}, ByID(id, idOf)...)
}

// ByTime is the order of a time. Rows of one time follow each other by their ids.
func ByTime[T any](column string, of func(T) time.Time, id string, idOf func(T) uuid.UUID) Order[T] {
	return append(Order[T]{{Column: column, Type: Time, Of: func(row T) any { return of(row) }}}, ByID(id, idOf)...)
}

// ByNumber is the order of a number that no other row has.
func ByNumber[T any](column string, of func(T) int) Order[T] {
	return Order[T]{{Column: column, Type: Int, Of: func(row T) any { return of(row) }}}
}

// Named is a list of things that have an id and a name. The columns are called
// id, name and created_at, after alias, such as "c.".
func Named[T any](list, alias string, id func(T) uuid.UUID, name func(T) string) List[T] {
	return List[T]{Name: list, Label: alias + "name", Created: alias + "created_at", Orders: map[string]Order[T]{
		"created_at": ByID(alias+"id", id),
		"name":       ByName(alias+"name", name, alias+"id", id),
	}}
}

// WithStatus is the list with a column that Query.Status is compared with.
func (l List[T]) WithStatus(column string) List[T] {
	l.Status = column
	return l
}
