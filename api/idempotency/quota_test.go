package idempotency

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// What small requests make Lemma keep is bounded for each workspace, and counts less with time. Answers
// that are as long as their requests do not count.
func TestQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(nil).quota
		first, second := uuid.UUID{1}, uuid.UUID{2}
		for range 20_000 {
			q.add(second, 100_000, 400_000)
			q.add(second, 0, 4096)
			q.add(first, 50, 104_296)
		}
		if !q.isUsed(first) || q.isUsed(second) {
			t.Error("2 GB of answers do not use a quota of 1 GiB, or another workspace's")
		}
		time.Sleep(20 * time.Hour)
		if !q.isUsed(first) {
			t.Error("the quota is free before its time")
		}
		time.Sleep(time.Hour)
		if q.isUsed(first) {
			t.Error("the quota stays used")
		}
	})
}

// Beyond its quota a workspace claims no further key. What is kept is still replayed, and the key is
// free once the quota is.
func TestKeysBeyondTheQuota(t *testing.T) {
	b := setup(t)
	held, _, err := b.Claim(t.Context(), b.workspace, "first", []byte("x"))
	if err == nil {
		err = b.Keep(t.Context(), *held, Answer{Status: 200, Header: map[string]string{}, Body: []byte("{}")})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.quota.add(b.workspace, 0, mostKept+smallAnswer+1<<20)
	for range 2 {
		if held, _, err := b.Claim(t.Context(), b.workspace, "second", []byte("x")); held != nil || !errors.Is(err, ErrFull) {
			t.Errorf("%+v, %v", held, err)
		}
	}
	if _, kept, err := b.Claim(t.Context(), b.workspace, "first", []byte("x")); err != nil || kept == nil {
		t.Errorf("the first again: %+v, %v", kept, err)
	}
	b.quota.used[b.workspace] = usage{}
	if held, _, err := b.Claim(t.Context(), b.workspace, "second", []byte("x")); err != nil || held == nil {
		t.Errorf("when the quota is free: %v", err)
	}
}

// What is kept counts.
func TestKeptAnswersCount(t *testing.T) {
	b := setup(t)
	held, _, err := b.Claim(t.Context(), b.workspace, "k", []byte("x"))
	if err == nil {
		err = b.Keep(t.Context(), *held, Answer{Status: 200, Header: map[string]string{}, Body: make([]byte, 100_000), To: 10_000})
	}
	if got := b.quota.used[b.workspace].bytes; err != nil || got != 100_000-smallAnswer-answerTimes*10_000 {
		t.Errorf("%d bytes count, %v", got, err)
	}
}
