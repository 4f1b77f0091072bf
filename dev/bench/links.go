package bench

import (
	"context"
	"fmt"

	"lemma/message"
	"lemma/sender/smtp"
)

// mailing is what the messages of a campaign contain besides their template. Zero: the
// headers of marketing and links that are tracked.
type mailing struct {
	transactional bool // no link to unsubscribe, and nothing tracked
	track         message.Choice
}

// campaignLinks measures what links cost: campaigns without any, with headers to
// unsubscribe, and with these and tracked opens and clicks, in turn.
func (b *benchmarks) campaignLinks(ctx context.Context, e *env, print func(figure) error) error {
	s, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	n := b.n(40_000)
	config := fmt.Sprintf(`{"host": "127.0.0.1", "port": %d, "tls": "none"}`, s.port)
	err = e.compareLinks(ctx, "null", func(ctx context.Context) (figure, error) {
		return e.oneCampaign(ctx, "", n, e.null.kind(), []byte(`{}`), nil,
			func() (int, int) { return n - e.null.count, e.null.duplicates }, func() error { e.null.reset(n); return nil })
	}, print)
	if err != nil {
		return err
	}
	return e.compareLinks(ctx, "smtp", func(ctx context.Context) (figure, error) {
		kind := smtp.Kind(smtp.Options{AllowPrivate: true})
		return e.oneCampaign(ctx, "", n, kind, []byte(config), nil, func() (int, int) { return s.seen(n) }, s.reset)
	}, print)
}

// compareLinks sends each kind of campaign three times, alternately, and prints the sums.
func (e *env) compareLinks(ctx context.Context, carrier string, send func(context.Context) (figure, error),
	print func(figure) error) error {
	const rounds = 3
	defer func() { e.mailing = mailing{} }()
	kinds := []struct {
		name string
		mailing
	}{
		{"campaign_links_none_" + carrier, mailing{transactional: true}},
		{"campaign_links_unsubscribe_" + carrier, mailing{track: message.Off}},
		{"campaign_links_tracked_" + carrier, mailing{}},
	}
	sums := make([]figure, len(kinds))
	for range rounds {
		for i, k := range kinds {
			e.mailing = k.mailing
			f, err := send(ctx)
			if err != nil {
				return err
			}
			sums[i].add(f, rounds)
		}
	}
	for i, k := range kinds {
		f := &sums[i]
		f.Name, f.PerSecond = k.name, round(float64(f.N)/f.Seconds)
		if i > 0 {
			f.Ratio, f.Against = round((f.CPUUsLemma+f.CPUUsPostgres)/(sums[0].CPUUsLemma+sums[0].CPUUsPostgres)), "CPU of "+kinds[0].name
		}
		if err := print(*f); err != nil {
			return err
		}
	}
	return nil
}
