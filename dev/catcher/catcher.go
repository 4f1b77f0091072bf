// Package catcher is a mail server for development and tests that delivers nothing.
// It counts every accepted message under any load. The counts per Message-ID and
// recipient are exact, also after a restart.
//
// It speaks SMTP with PIPELINING, 8BITMIME and SIZE, and has a web page with the
// messages. It simulates faults: it drops connections after the final dot, replies
// late, throttles, hangs. It listens on loopback only, since it has no login.
package catcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the options of a catcher.
type Options struct {
	SMTP   string // address; "127.0.0.1:0" when empty
	HTTP   string // address of the page; no page when empty
	Folder string // where the ledger is kept, in caught.log; nowhere when empty
	Keep   int    // messages kept with their content, the latest; 1,000 when 0

	LockStep bool // PIPELINING is not offered

	// Faults is called before each reply; nil for no faults. Script makes one
	// from rules.
	Faults func(Event) Fault
}

// Catcher is a running catcher.
type Catcher struct {
	ledger *ledger
	offers string // the reply to EHLO
	faults atomic.Pointer[func(Event) Fault]
	counts [stages]atomic.Int64 // events at each stage

	smtp, web net.Listener
	server    *http.Server
	ctx       context.Context //nolint:containedctx // ends with Close, for delays and hangs
	stop      context.CancelFunc
	all       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	next  int // number of the next connection
}

// Start listens. What an earlier catcher wrote to the folder is counted again.
func Start(o Options) (*Catcher, error) {
	if o.SMTP == "" {
		o.SMTP = "127.0.0.1:0"
	}
	if o.Keep == 0 {
		o.Keep = 1000
	}
	ledger, err := openLedger(o.Folder, o.Keep)
	if err != nil {
		return nil, err
	}
	c := &Catcher{ledger: ledger, offers: offers(o), conns: map[net.Conn]struct{}{}, next: 1}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.SetFaults(o.Faults)
	if err := c.listen(o); err != nil {
		c.Close()
		return nil, err
	}
	c.all.Go(c.accept)
	if c.web != nil {
		c.server = &http.Server{Handler: c.page(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
			WriteTimeout: time.Minute, IdleTimeout: time.Minute}
		c.all.Go(func() { _ = c.server.Serve(c.web) }) // ends with Close
	}
	return c, nil
}

func (c *Catcher) listen(o Options) (err error) {
	if c.smtp, err = local(o.SMTP); err != nil {
		return fmt.Errorf("listen for mail: %w", err)
	}
	if o.HTTP == "" {
		return nil
	}
	if c.web, err = local(o.HTTP); err != nil {
		return fmt.Errorf("listen for the page: %w", err)
	}
	return nil
}

// local listens on loopback only.
func local(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%s is not an address of this machine alone", address)
	}
	return net.Listen("tcp", address)
}

// Addr is the SMTP address.
func (c *Catcher) Addr() string { return c.smtp.Addr().String() }

// URL is the URL of the page; empty if there is none.
func (c *Catcher) URL() string {
	if c.web == nil {
		return ""
	}
	return "http://" + c.web.Addr().String()
}

// SetFaults changes the faults from the next reply on; nil for none.
func (c *Catcher) SetFaults(faults func(Event) Fault) {
	if faults == nil {
		faults = func(Event) Fault { return Fault{} }
	}
	c.faults.Store(&faults)
}

// Stats are the totals so far.
func (c *Catcher) Stats() Stats { return c.ledger.stats() }

// Ledger has an entry for each recipient of the kept messages, in the order of arrival.
func (c *Catcher) Ledger() []Entry { return c.ledger.all() }

// Copies counts messages by Message-ID.
func (c *Catcher) Copies() map[string]int { return c.ledger.copies() }

// Source is the content of a ledger's entry, while it is kept.
func (c *Catcher) Source(n int) ([]byte, bool) {
	row, raw, ok := c.ledger.message(n)
	return raw, ok && row.Kept
}

// HTML is the subject and the HTML part of a ledger's entry, while it is kept.
func (c *Catcher) HTML(n int) (subject, html string, ok bool) {
	raw, ok := c.Source(n)
	if !ok {
		return "", "", false
	}
	m := read(raw)
	return m.Subject, m.HTML, true
}

// Close closes all connections and flushes the log. The counts can still be read.
func (c *Catcher) Close() {
	c.stop()
	if c.smtp != nil {
		_ = c.smtp.Close()
	}
	if c.server != nil {
		_ = c.server.Close()
	} else if c.web != nil {
		_ = c.web.Close()
	}
	c.mu.Lock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.all.Wait()
	c.ledger.close()
}

func (c *Catcher) accept() {
	for {
		conn, err := c.smtp.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: others will be given back
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if number, ok := c.admit(conn); ok {
			c.all.Go(func() {
				defer c.leave(conn)
				newSession(c, conn, number).run()
			})
		}
	}
}

func (c *Catcher) admit(conn net.Conn) (number int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		_ = conn.Close()
		return 0, false
	}
	c.conns[conn] = struct{}{}
	number, c.next = c.next, c.next+1
	return number, true
}

func (c *Catcher) leave(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	_ = conn.Close()
}

// logFile is the file of a ledger in its folder.
func logFile(folder string) (*os.File, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(folder, "caught.log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
}
