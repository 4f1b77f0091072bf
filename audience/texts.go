package audience

import (
	"context"
	"slices"

	"lemma/audience/sqltext"
)

// texts determines which messages of a source can be shown. They can contain names of
// its tables and values of its rows.
type texts int

const (
	textsOfQueries texts = iota // those about the text of a query; if there is no caller, as in a fan-out
	allTexts                    // for a caller that may read rows
	noTexts                     // for a caller that may not
)

type textsKey struct{}

// ForCaller marks a context as one of a caller. With readsRows, the scope
// audiences:query, errors contain the messages of the source, and validation gets an
// estimate of its planner, which evaluates parts of a query. Without it, errors
// contain only SQLSTATE, line and column, and nothing is evaluated. The reads for
// callers at a time are bounded.
func ForCaller(ctx context.Context, readsRows bool) context.Context {
	if readsRows {
		return context.WithValue(ctx, textsKey{}, allTexts)
	}
	return context.WithValue(ctx, textsKey{}, noTexts)
}

// MayReadRows reports whether the caller of ctx may get data of rows. It is true without a caller.
func MayReadRows(ctx context.Context) bool { return textsFor(ctx) != noTexts }

func textsFor(ctx context.Context) texts {
	t, _ := ctx.Value(textsKey{}).(texts)
	return t
}

// aboutServers are the classes of SQLSTATE whose messages describe the server, the
// login or the transaction: connections, privileges of a login, resources, shutdowns.
var aboutServers = []string{"08", "25", "28", "3D", "53", "57"}

// shown returns the part of a message that can be shown. ofText is true for a message
// about the text of a query. The class of an SQLSTATE does not prove that: casts such
// as email::regclass and current_setting(email) raise 42P01 and 42704 while the query
// runs, and contain data.
func (t texts) shown(state, message string, ofText bool) string {
	server := len(state) == 5 && slices.Contains(aboutServers, state[:2])
	if t == allTexts || t == textsOfQueries && (ofText || server) {
		return sqltext.Printable(message)
	}
	return "the source answers with SQLSTATE " + sqltext.Printable(state)
}
