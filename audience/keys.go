package audience

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Keys runs a customer's select that returns one column of profile keys, and calls
// yield for each, in any order; a key may come more than once. A key is valid until
// yield returns. The limits are those of an audience.
func (a *Audiences) Keys(ctx context.Context, ws, source uuid.UUID, sql string, p Period, yield func(key []byte)) error {
	opened, err := a.forMatching(ctx, ws, source, sql)
	if err != nil {
		return noLongerValid(err)
	}
	sql, _ = p.bound(opened.target.Kind, sql)
	return a.within(ctx, opened, a.streamSpan(Audience{}), func(r *run) error {
		columns, err := r.describe(r.ctx, sql)
		if err == nil {
			err = checkMatching(columns)
		}
		if err != nil {
			return noLongerValid(err)
		}
		rows, err := r.open(r.ctx, sql, []string{columns[0].Name}, 0)
		if err != nil {
			return noLongerValid(err)
		}
		return noLongerValid(a.options.eachKey(rows, yield))
	})
}

// eachKey reads all keys, within the limits of o.
func (o Options) eachKey(rows cursor, yield func(key []byte)) error {
	counts := stream{options: o, values: make([][]byte, 1)}
	for {
		more, err := rows.next(counts.values)
		if err != nil || !more {
			return err
		}
		if _, err := counts.count(); err != nil {
			return err
		}
		if counts.values[0] != nil {
			yield(counts.values[0])
		}
	}
}

// ValidateKeys validates a query of Keys at the source, without running it. It must use
// the end of its period. Faults are at /sql, with line and column if the source gives
// them; a parameter before them in their line moves the column.
func (a *Audiences) ValidateKeys(ctx context.Context, ws, source uuid.UUID, sql string) error {
	opened, err := a.forMatching(ctx, ws, source, sql)
	if err != nil {
		return err
	}
	sql, cutOff := Period{time.Now(), time.Now()}.bound(opened.target.Kind, sql)
	if !cutOff {
		return errUnbounded()
	}
	return a.within(ctx, opened, a.readSpan(), func(r *run) error {
		columns, err := r.describe(r.ctx, sql)
		if err != nil {
			return matchingFault(expected(opened.target.Kind, sql, err))
		}
		return checkMatching(columns)
	})
}
