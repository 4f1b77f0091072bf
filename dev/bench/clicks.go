package bench

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"lemma/message"
	"lemma/sender/gateway"
	"lemma/sender/wire"
)

// clicks follows links of messages through the public route, each in a request of its
// own, until it is stored and redirected, then applies the events. The clients are in
// this process, so its CPU time contains theirs.
func (b *benchmarks) clicks(ctx context.Context, e *env, print func(figure) error) error {
	const clients = 128
	n := b.n(60_000)
	process, err := e.fresh(ctx, gateway.Kind(wire.Operator{}))
	if err != nil {
		return err
	}
	defer process.drop()
	target, err := process.hookTarget(ctx, n, genericFormat)
	if err != nil {
		return err
	}
	links, err := process.linksOf(ctx, target, n)
	if err != nil {
		return err
	}
	d, err := process.open(ctx, clients)
	if err != nil {
		return err
	}
	defer d.stop()
	stored, err := d.follow(ctx, e, links, clients)
	if err != nil {
		return err
	}
	if err := process.Pool.QueryRow(ctx, `select $2 - count(*) from tracking_queue where workspace_id = $1`,
		process.workspace, n).Scan(&stored.Missing); err != nil {
		return err
	}
	applied, err := process.applyClicks(ctx, e, n)
	if err != nil {
		return err
	}
	if err := print(stored); err != nil {
		return err
	}
	return print(applied)
}

// linksOf is a link of each notification.
func (b *instance) linksOf(ctx context.Context, t hookTarget, n int) ([]string, error) {
	s, err := b.Tracking.Signer(ctx, b.workspace, time.Now(), message.Track{Opens: true, Clicks: true})
	if err != nil {
		return nil, err
	}
	links := make([]string, n)
	for i := range links {
		links[i] = s.Of("", "", t.origin, t.keyOf(i)).Click(i%10, fmt.Sprintf("https://shop.example/sale?item=%d&utm_campaign=bench", i))
	}
	return links, nil
}

// follow requests the links and measures the answers.
func (d *apiServer) follow(ctx context.Context, e *env, links []string, clients int) (figure, error) {
	client := *d.client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return e.timed(ctx, "clicks", len(links), clients, func(i int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+links[i], http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")
		answer, err := client.Do(req)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusFound {
			return fmt.Errorf("the link was answered %s", answer.Status)
		}
		return nil
	})
}

// applyClicks applies n clicks.
func (b *instance) applyClicks(ctx context.Context, e *env, n int) (figure, error) {
	m := startMeter(e.postmaster())
	for {
		applied, err := b.Tracking.Apply(ctx, 0)
		if err != nil {
			return figure{}, err
		}
		if applied == 0 {
			break
		}
	}
	f := m.stop("clicks_apply", n)
	err := b.Pool.QueryRow(ctx, `select $2 - coalesce(sum(unique_clicks), 0)::int from engagement_counts where workspace_id = $1`,
		b.workspace, n).Scan(&f.Missing)
	return f, err
}
