package lifecycle_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/lifecycle"
)

var valves = lifecycle.Table[string, string]{Noun: "a valve",
	From:   map[string][]string{"open": {"shut"}, "shut": {"open"}, "paint": {"open", "shut"}, "rust": {"open", "shut"}},
	Public: []string{"paint", "open", "shut"}}

func TestTable(t *testing.T) {
	t.Parallel()
	if d := cmp.Diff([]string{"paint", "open"}, valves.Allowed("shut")); d != "" {
		t.Error(d)
	}
	if got := valves.Allowed("gone"); got == nil || len(got) != 0 {
		t.Errorf("%#v, want an empty list, which is not null in JSON", got)
	}
	if err := valves.Check("shut", "rust"); err != nil {
		t.Error(err)
	}
	var e *lemma.Error
	if err := valves.Check("open", "open"); !errors.As(err, &e) || e.Kind != lemma.WrongStatus || e.Status != "open" ||
		e.Message != "a valve that is open does not allow open" {
		t.Errorf("%+v", e)
	}
	if d := cmp.Diff([]string{"paint", "shut"}, e.Allowed); d != "" {
		t.Error(d)
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	broken, lost := errors.New("wrong status"), errors.New("lost")
	for name, c := range map[string]struct {
		err      error
		repeated bool
		failed   error
		want     error
	}{
		"done":                       {nil, false, nil, nil},
		"not done":                   {broken, false, nil, broken},
		"done by an earlier attempt": {broken, true, nil, nil},
		"repeated, rolled back":      {lifecycle.ErrRepeated, true, nil, nil},
		"the check fails":            {broken, false, lost, lost},
	} {
		checked := false
		got, err := lifecycle.Once(t.Context(), c.err, func(context.Context) (bool, error) { checked = true; return c.repeated, c.failed },
			func(context.Context) (string, error) { return "now", nil })
		if !errors.Is(err, c.want) || (err == nil) != (got == "now") || checked != (c.err != nil) {
			t.Errorf("%s: %q, %v, checked %v", name, got, err, checked)
		}
	}
}
