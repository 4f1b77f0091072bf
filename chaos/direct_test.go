package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"lemma"
	"lemma/workspaces"
)

// Servers and workers are killed at random moments while impatient clients send keyed
// requests, each three times at once, and repeat those without an answer. Every client
// ends with an answer, those of one key name one notification, and no recipient gets more
// messages than the strategy allows.
func TestKilledProcessesAndKeys(t *testing.T) {
	t.Parallel()
	for strategy, bound := range map[string]int{"at_most_once": 1, "at_least_once": 2} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.mail.slow(5 * time.Millisecond)
			kills := h.kills(5)
			c := h.openClients(strategy, min(kills*keysPerKill, 5_000))
			stop := c.killAtRandom(kills, h.random())
			answers := c.sendAll()
			stop()
			c.verify(answers, bound)
		})
	}
}

// keysPerKill is the number of keys for each kill: 5,000 with 30.
const keysPerKill = 167

// clients send keyed requests to two servers.
type clients struct {
	*env
	servers  []string // addresses
	workers  []*worker
	token    string
	strategy string
	keys     int
	http     *http.Client
	answered chan struct{} // one for each key with all its answers
}

func (h *env) openClients(strategy string, keys int) *clients {
	h.t.Helper()
	c := &clients{env: h, strategy: strategy, keys: keys, answered: make(chan struct{}, keys),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	_, token, err := workspaces.New(h.Pool).CreateKey(h.t.Context(), h.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "chaos", Scopes: []string{"notifications:send"}})
	h.Must(err)
	c.token = token
	for range 2 {
		c.servers = append(c.servers, freeAddress(h.t))
	}
	for i := range c.servers {
		c.workers = append(c.workers, c.server(i))
	}
	for _, address := range c.servers {
		h.eventually("a server answers", func() bool {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	c.workers = append(c.workers, h.startWorkers(2)...)
	return c
}

// server starts a server at its address.
func (c *clients) server(i int) *worker {
	return c.start("serve", "LEMMA_LISTEN="+c.servers[i], "LEMMA_METRICS_LISTEN="+c.servers[i])
}

// killAtRandom kills one process after another while the requests are sent, and starts it
// again. stop waits for the last.
func (c *clients) killAtRandom(kills int, random *rand.Rand) (stop func()) {
	var killer sync.WaitGroup
	points := killPoints(random, kills, c.keys)
	killer.Go(func() {
		seen := 0
		for _, at := range points {
			for ; seen < at; seen++ {
				<-c.answered
			}
			i := random.IntN(len(c.workers))
			c.workers[i].kill()
			if i < len(c.servers) {
				c.workers[i] = c.server(i)
			} else {
				c.workers[i] = c.work()
			}
		}
	})
	return killer.Wait
}

// sendAll sends each request three times at once, some keys at a time, and returns the
// notifications of the answers by key.
func (c *clients) sendAll() [][]string {
	answers := make([][]string, c.keys)
	var all sync.WaitGroup
	next := make(chan int)
	for range 16 {
		all.Go(func() {
			for key := range next {
				answers[key] = make([]string, 3)
				var deliveries sync.WaitGroup
				for i := range answers[key] {
					deliveries.Go(func() { answers[key][i] = c.insist(key, i) })
				}
				deliveries.Wait()
				c.answered <- struct{}{}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		for key := range c.keys {
			next <- key
		}
		close(next)
		all.Wait()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return answers
		case <-time.After(100 * time.Millisecond):
			c.expireKilled() // a key is locked while a killed worker has its notification
		}
	}
}

// insist repeats a request until it is answered with a notification. The client waits for
// 400 ms at first, and longer each time: a slow machine must be able to answer at all.
func (c *clients) insist(key, delivery int) string {
	body, _ := json.Marshal(map[string]any{"key": fmt.Sprint("order-", key), "to": map[string]any{"address": address(key)},
		"template_id": lemma.FormatID(lemma.PrefixTemplate, c.Template), "provider_id": lemma.FormatID(lemma.PrefixProvider, c.Provider),
		"from": map[string]any{"email": "shop@shop.example"}, "strategy": c.strategy, "data": map[string]any{"id": key, "name": "Ada"}})
	wait := 400 * time.Millisecond
	for try, begun := 0, time.Now(); time.Since(begun) < longestWait; try++ {
		status, id, err := c.request(wait, c.servers[(delivery+try)%len(c.servers)], body)
		switch {
		case os.IsTimeout(err):
			wait = min(2*wait, 30*time.Second)
		case err != nil:
			time.Sleep(10 * time.Millisecond)
		case status == http.StatusAccepted || status == http.StatusOK:
			return id
		case status != http.StatusConflict && status < 500:
			return fmt.Sprint("status ", status)
		default:
			time.Sleep(100 * time.Millisecond)
		}
	}
	return "no answer"
}

// request sends a request to a server. It returns the notification of the answer.
func (c *clients) request(wait time.Duration, server string, body []byte) (status int, id string, err error) {
	ctx, stop := context.WithTimeout(c.t.Context(), wait)
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+server+"/v1/notifications", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := c.http.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	var sent struct {
		Notification struct{ ID string } `json:"notification"`
	}
	err = json.NewDecoder(answer.Body).Decode(&sent)
	return answer.StatusCode, sent.Notification.ID, err
}

func address(key int) string { return fmt.Sprintf("order%d@shop.example", key) }

// verify waits until every notification has ended, and compares the answers, Lemma's rows
// and the messages at the mail server.
func (c *clients) verify(answers [][]string, bound int) {
	c.t.Helper()
	c.eventually("every notification has ended", func() bool {
		c.makeAllDue()
		return c.Count(`select count(*) from batches where status in ('ready', 'leased')`) == 0
	})
	for key, all := range answers {
		if _, _, ok := lemma.ParseNotificationID(all[0]); !ok || all[1] != all[0] || all[2] != all[0] {
			c.t.Errorf("the answers under %d are %q", key, all)
		}
	}
	c.WantCount(c.keys, `select count(*) from notifications`)
	got := map[string]int{}
	for _, d := range c.mail.delivered() {
		got[d.recipient]++
	}
	doubled := 0
	for key := range c.keys {
		n := got[address(key)]
		if n > bound {
			c.t.Errorf("%s got %d messages", address(key), n)
		}
		if n == 2 {
			doubled++
		}
	}
	unknown := c.Count(`select count(*) from attempts where attempt = 1 and outcome = 'unknown'`)
	if doubled > unknown {
		c.t.Errorf("%d got two messages, and %d first attempts are unknown", doubled, unknown)
	}
	// A notification without a message is one with an unknown outcome.
	missing := c.keys - len(got)
	if orphaned := c.Count(`select count(*) from notification_status where status = 'orphaned'`); missing > orphaned {
		c.t.Errorf("%d got no message, and %d are orphaned", missing, orphaned)
	}
	c.t.Logf("%s: %d keys, %d messages, %d twice, %d first attempts unknown, %d without a message", c.strategy, c.keys,
		len(c.mail.delivered()), doubled, unknown, missing)
}
