package notifications_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/notifications"
)

// A chunk that is copied has the same rows as one that is inserted, also those that are
// longer than a message of COPY.
func TestACopyWritesWhatAnInsertWrites(t *testing.T) {
	f := setup(t)
	all := recipients(500)
	all[7].Payload = `{"name":"` + strings.Repeat("ä", 100_000) + `"}`
	all[8].ProfileKey, all[8].Address, all[8].Payload = "Zoë 🙂", "ä@shop.example", ""
	all[9].Key = all[10].Key // the first of the two profiles requests it
	for i := 20; i < 40; i++ {
		copy(all[i].Key[:8], "12345678")
	}
	write := func(byCopy, converts bool) (rows string) {
		f.origin = lemma.NewID()
		f.insert(all, func(c *notifications.Chunk) { c.Copy, c.Converts, c.BatchSize = byCopy, converts, 100 })
		f.Must(f.Pool.QueryRow(t.Context(), `
			select string_agg(concat_ws('|', n.key, b.i, n.ordinal, n.profile_key, n.address, md5(n.payload), length(n.payload),
				n.skip_reason, n.converts), E'\n' order by n.key, n.profile_key)
			from notifications n
			left join (select id, row_number() over (order by id) as i from batches where origin_id = $1) b on b.id = n.batch_id
			where n.origin_id = $1`, f.origin).Scan(&rows))
		return rows
	}
	for _, converts := range []bool{false, true} {
		copied, inserted := write(true, converts), write(false, converts)
		if d := cmp.Diff(strings.Split(inserted, "\n"), strings.Split(copied, "\n")); d != "" {
			t.Errorf("copied: +, inserted: -\n%s", d)
		}
		if !strings.Contains(copied, "Zoë 🙂|ä@shop.example|") || strings.HasSuffix(copied, "|t") != converts {
			t.Errorf("wrote %.500s", copied)
		}
	}
}

// Notifications are written in the order of their keys, and of their profiles where they have one key.
func TestRowsAreWrittenInTheOrderOfTheirKeys(t *testing.T) {
	f := setup(t)
	all := recipients(60)
	for i := range 30 {
		copy(all[i].Key[:8], "12345678")
	}
	all[3].Key, all[40].Key = all[5].Key, all[50].Key
	all[3].ProfileKey, all[40].ProfileKey = "6", "6"
	before := append([]notifications.Recipient{}, all...)
	f.insert(all, func(c *notifications.Chunk) { c.Copy, c.BatchSize = true, 100 })
	if d := cmp.Diff(before, all); d != "" {
		t.Errorf("the chunk has changed:\n%s", d)
	}
	f.WantCount(58, `select count(*) from notifications where batch_id is not null`)
	f.WantCount(2, `select count(*) from notifications where skip_reason = 'duplicate_address' and profile_key = '6'`)
	f.WantCount(0, `select count(*) from notifications a join notifications b on b.batch_id = a.batch_id
		where a.key < b.key and a.ordinal > b.ordinal`)
}
