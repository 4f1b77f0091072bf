package catcher

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Entry is one message to one recipient that was kept.
type Entry struct {
	N          int       `json:"n"` // from 1, over all restarts
	MessageID  string    `json:"message_id"`
	Recipient  string    `json:"recipient"`
	At         time.Time `json:"at"`         // to the millisecond
	Connection int       `json:"connection"` // 0: before the last restart
}

// Stats are totals.
type Stats struct {
	Messages   int       `json:"messages"`   // entries
	Distinct   int       `json:"distinct"`   // Message-IDs
	Duplicates int       `json:"duplicates"` // entries whose Message-ID the same recipient had already
	Most       int       `json:"most"`       // copies of the most frequent Message-ID
	Recipients int       `json:"recipients"` // addresses
	Unnamed    int       `json:"unnamed"`    // entries without a Message-ID
	PerSecond  float64   `json:"per_second"` // over the last five seconds
	First      time.Time `json:"first"`
	Last       time.Time `json:"last"`
}

// ledger counts messages. If there is a folder, entries are also appended to a file
// before the reply to the message: a killed catcher reads them at its next start (not
// after a power cut, since there is no fsync).
type ledger struct {
	mu         sync.Mutex
	entries    []Entry
	copiesOf   map[string]int32 // by Message-ID and recipient
	byID       map[string]int32
	byAddress  map[string]int32
	duplicates int
	most       int32
	unnamed    int
	kept       []kept // a ring buffer: entry n is at (n-1) % len
	seconds    [8]struct{ second, count int64 }
	file       *os.File
	line       []byte
}

// kept is a message with its content.
type kept struct {
	n   int
	raw []byte
}

func openLedger(folder string, keep int) (*ledger, error) {
	l := &ledger{copiesOf: map[string]int32{}, byID: map[string]int32{}, byAddress: map[string]int32{}, kept: make([]kept, keep)}
	if folder == "" {
		return l, nil
	}
	file, err := logFile(folder)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	l.file = file
	if err := l.replay(); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	return l, nil
}

// replay counts what the file holds. A last line without its end was cut off
// by a crash before its message was answered. It is removed, so that the next line is
// not appended to it.
func (l *ledger) replay() error {
	in := bufio.NewReader(l.file)
	var whole int64
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return l.file.Truncate(whole)
		}
		whole += int64(len(line))
		at, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		id, to, ok := strings.Cut(rest, "\t")
		ms, err := strconv.ParseInt(at, 10, 64)
		if err != nil || !ok {
			return fmt.Errorf("byte %d: %q is not an entry", whole-int64(len(line)), line)
		}
		l.count(id, to, time.UnixMilli(ms), 0)
	}
}

// enter keeps a message and returns its name.
func (l *ledger) enter(id string, to []string, connection int, raw []byte) string {
	now := time.Now().Truncate(time.Millisecond)
	id = tame(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line = l.line[:0]
	for _, address := range to {
		address = tame(address)
		n := l.count(id, address, now, connection)
		slot := &l.kept[(n-1)%len(l.kept)]
		slot.n, slot.raw = n, append(slot.raw[:0], raw...)
		l.tick(now.Unix())
		l.line = strconv.AppendInt(l.line, now.UnixMilli(), 10)
		l.line = append(append(append(append(append(l.line, '\t'), id...), '\t'), address...), '\n')
	}
	if l.file != nil {
		if _, err := l.file.Write(l.line); err != nil {
			fmt.Fprintln(os.Stderr, "catcher: the ledger cannot be written:", err)
		}
	}
	return "C" + strconv.Itoa(len(l.entries))
}

// tame removes line ends from a name.
func tame(s string) string {
	if strings.ContainsAny(s, "\t\r\n") {
		return strings.Map(func(r rune) rune {
			if r == '\t' || r == '\r' || r == '\n' {
				return ' '
			}
			return r
		}, s)
	}
	return s
}

func (l *ledger) count(id, address string, at time.Time, connection int) int {
	n := len(l.entries) + 1
	l.entries = append(l.entries, Entry{n, id, address, at, connection})
	l.byAddress[address]++
	if id == "" {
		l.unnamed++
		return n
	}
	l.byID[id]++
	l.most = max(l.most, l.byID[id])
	pair := id + " " + address
	if l.copiesOf[pair]++; l.copiesOf[pair] > 1 {
		l.duplicates++
	}
	return n
}

func (l *ledger) tick(second int64) {
	s := &l.seconds[second%int64(len(l.seconds))]
	if s.second != second {
		s.second, s.count = second, 0
	}
	s.count++
}

func (l *ledger) rate(now time.Time) float64 {
	sum := int64(0)
	for _, s := range l.seconds {
		if age := now.Unix() - s.second; age >= 1 && age <= 5 {
			sum += s.count
		}
	}
	return float64(sum) / 5
}

func (l *ledger) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		Messages: len(l.entries), Distinct: len(l.byID), Duplicates: l.duplicates, Most: int(l.most),
		Recipients: len(l.byAddress), Unnamed: l.unnamed, PerSecond: l.rate(time.Now()),
	}
	if n := len(l.entries); n > 0 {
		s.First, s.Last = l.entries[0].At, l.entries[n-1].At
	}
	return s
}

func (l *ledger) all() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Entry(nil), l.entries...)
}

func (l *ledger) copies() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := make(map[string]int, len(l.byID))
	for id, n := range l.byID {
		m[id] = int(n)
	}
	return m
}

// row is an entry as the page lists it.
type row struct {
	Entry
	Copies  int    `json:"copies"`
	Subject string `json:"subject"` // empty when the content is no longer kept
	Kept    bool   `json:"kept"`
}

// find lists the newest entries whose Message-ID, recipient or kept subject
// contain a text.
func (l *ledger) find(text string, most int) []row {
	text = strings.ToLower(text)
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := []row{}
	for i := len(l.entries) - 1; i >= 0 && len(rows) < most; i-- {
		e := l.entries[i]
		subject := ""
		raw, ok := l.content(e.N)
		if ok {
			subject = subjectOf(raw)
		}
		if contains(e.MessageID, text) || contains(e.Recipient, text) || contains(subject, text) {
			rows = append(rows, row{e, int(l.byID[e.MessageID]), subject, ok})
		}
	}
	return rows
}

func contains(s, lower string) bool { return strings.Contains(strings.ToLower(s), lower) }

// content is the message of an entry. The caller holds the lock.
func (l *ledger) content(n int) ([]byte, bool) {
	k := l.kept[(n-1)%len(l.kept)]
	return k.raw, n > 0 && k.n == n
}

// message returns one entry with a copy of its content.
func (l *ledger) message(n int) (row, []byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 1 || n > len(l.entries) {
		return row{}, nil, false
	}
	e := l.entries[n-1]
	raw, ok := l.content(n)
	return row{e, int(l.byID[e.MessageID]), subjectOf(raw), ok}, bytes.Clone(raw), true
}

func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close() // every write has been made
		l.file = nil
	}
}
