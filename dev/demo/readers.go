package demo

import (
	"context"
	"errors"
	"fmt"
	"html"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"lemma/dev/catcher"
)

// readers simulate the recipients of the A/B demo. They load the pixel of a message and
// follow its link over the public URL of Lemma, as a mail client does, so that Lemma
// counts them. A subject that is a question is opened more often.
type readers struct {
	catcher *catcher.Catcher
	http    http.Client
	places  chan struct{} // bounds the requests at a time, so that none waits for a connection

	mu      sync.Mutex
	opened  int // messages
	clicked int
	unsure  int // of both: every answer was late
	failed  error
}

const (
	openRate     = 0.30
	questionRate = 0.45
	clickRate    = 0.50 // of those that open

	// leastDelay is longer than the time within which a click counts as a machine's.
	leastDelay = 3500 * time.Millisecond
	mostDelay  = 6 * time.Second

	// Lemma answers when it has stored an open or click, or after lateAfter. A reader
	// repeats a request whose answer is late. Unique opens and clicks count it once.
	lateAfter   = 500 * time.Millisecond
	tries       = 10
	repeatAfter = 2 * time.Second
	together    = 8

	browser = "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0"
)

func newReaders(c *catcher.Catcher) *readers {
	r := &readers{catcher: c, places: make(chan struct{}, together)}
	r.http.Transport = &http.Transport{MaxIdleConnsPerHost: together}
	r.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return r
}

// read reads messages as they arrive, from the first one after n, until ctx ends and
// those that were begun have been read.
func (r *readers) read(ctx context.Context, n int) {
	var all sync.WaitGroup
	defer all.Wait()
	random := rand.New(rand.NewPCG(1, 2))
	for {
		for _, e := range r.catcher.Ledger()[n:] {
			n = e.N
			subject, body, kept := r.catcher.HTML(e.N)
			rate := openRate
			if strings.Contains(subject, "?") {
				rate = questionRate
			}
			opens, clicks := random.Float64() < rate, random.Float64() < clickRate
			delay := leastDelay + time.Duration(random.Int64N(int64(mostDelay-leastDelay)))
			if kept && opens {
				all.Go(func() { r.open(context.WithoutCancel(ctx), body, delay, clicks) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// open reads one message: its pixel, and its link if the reader clicks.
func (r *readers) open(ctx context.Context, body string, delay time.Duration, clicks bool) {
	time.Sleep(delay)
	if r.visit(ctx, body, pixel, &r.opened) && clicks {
		r.visit(ctx, body, link, &r.clicked)
	}
}

// visit requests the URL that an expression finds in a message, until an answer is in
// time, and counts it. It returns false after an error.
func (r *readers) visit(ctx context.Context, body string, find *regexp.Regexp, count *int) bool {
	for range tries {
		took, err := r.get(ctx, body, find)
		if err != nil || took < lateAfter {
			r.record(err, count, 0)
			return err == nil
		}
		time.Sleep(repeatAfter)
	}
	r.record(nil, count, 1)
	return true
}

var (
	pixel = regexp.MustCompile(`src="([^"]*/o/[^"]*)"`)
	link  = regexp.MustCompile(`href="([^"]*/c/[^"]*)"`)
)

// get requests a URL of a message, and returns how long the answer took.
func (r *readers) get(ctx context.Context, body string, find *regexp.Regexp) (took time.Duration, err error) {
	found := find.FindStringSubmatch(body)
	if found == nil {
		return 0, errors.New("a message has no " + find.String())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, html.UnescapeString(found[1]), nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("User-Agent", browser)
	r.places <- struct{}{}
	defer func() { <-r.places }()
	begun := time.Now()
	res, err := r.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode >= 400 {
		return 0, fmt.Errorf("GET %s: %s", req.URL, res.Status)
	}
	return time.Since(begun), nil
}

func (r *readers) record(err error, count *int, unsure int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure += unsure
	if err == nil {
		*count++
	} else if r.failed == nil {
		r.failed = err
	}
}

// count sets how many messages were opened, and how many links clicked.
func (r *readers) count(n *ABCounts) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n.Opened, n.Clicked, n.Unsure = r.opened, r.clicked, r.unsure
	return r.failed
}
