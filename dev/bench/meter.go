package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// figure is one line that `lemma bench` prints. CPU is in microseconds per
// notification.
type figure struct {
	Name          string  `json:"name"`
	N             int     `json:"n"`
	Seconds       float64 `json:"seconds"`
	PerSecond     float64 `json:"per_s"`
	CPUUsLemma    float64 `json:"cpu_us_lemma"`
	CPUUsPostgres float64 `json:"cpu_us_postgres"`
	RSSMB         float64 `json:"rss_mb"`
	Missing       int     `json:"missing"`
	Duplicates    int     `json:"duplicates"`
	FirstSeconds  float64 `json:"first_s,omitempty"`        // from send to the first message
	Meanwhile     int     `json:"sent_meanwhile,omitempty"` // messages that a campaign sent during the measurement
	Ratio         float64 `json:"ratio,omitempty"`          // against what Against names, measured in the same run
	RatioSeconds  float64 `json:"ratio_seconds,omitempty"`  // the same of the time
	Against       string  `json:"against,omitempty"`
	P50Ms         float64 `json:"p50_ms,omitempty"`
	P99Ms         float64 `json:"p99_ms,omitempty"`
	SentP99Ms     float64 `json:"sent_p99_ms,omitempty"` // from the acceptance of a request until its outcome is stored
}

// meter measures one figure: wall clock, CPU time of this process and of Postgres,
// and the peak of this process's resident memory.
type meter struct {
	begun          time.Time
	self, postgres time.Duration
	postmaster     int
}

func startMeter(postmaster int) *meter {
	// Writing 5 resets the peak of the resident set (proc(5), clear_refs).
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	m := &meter{postgres: clusterCPU(postmaster), postmaster: postmaster}
	m.self, m.begun = selfCPU(), time.Now() // after clusterCPU, which itself takes some milliseconds
	return m
}

func (m *meter) stop(name string, n int) figure {
	took := time.Since(m.begun).Seconds()
	return figure{
		Name: name, N: n, Seconds: round(took), PerSecond: round(float64(n) / took),
		CPUUsLemma:    round(float64((selfCPU() - m.self).Microseconds()) / float64(n)),
		CPUUsPostgres: round(float64((clusterCPU(m.postmaster) - m.postgres).Microseconds()) / float64(n)),
		RSSMB:         round(peakMB()),
	}
}

// timed measures n calls by several clients, with their latencies.
func (e *env) timed(ctx context.Context, name string, n, clients int, do func(i int) error) (figure, error) {
	var mu sync.Mutex
	took := make([]time.Duration, 0, n)
	m := startMeter(e.postmaster())
	err := spread(ctx, n, clients, func(i int) error {
		begun := time.Now()
		if err := do(i); err != nil {
			return err
		}
		mu.Lock()
		took = append(took, time.Since(begun))
		mu.Unlock()
		return nil
	})
	if err != nil {
		return figure{}, err
	}
	f := m.stop(name, n)
	f.latencies(took)
	return f, nil
}

// latencies sets the percentiles of durations, which it sorts.
func (f *figure) latencies(took []time.Duration) {
	slices.Sort(took)
	f.P50Ms, f.P99Ms = round(took[len(took)/2].Seconds()*1000), round(took[len(took)*99/100].Seconds()*1000)
}

// add adds one of several equal runs.
func (f *figure) add(o figure, runs int) {
	f.N, f.Seconds, f.Missing, f.Duplicates = f.N+o.N, round(f.Seconds+o.Seconds), f.Missing+o.Missing, f.Duplicates+o.Duplicates
	f.CPUUsLemma, f.CPUUsPostgres = round(f.CPUUsLemma+o.CPUUsLemma/float64(runs)), round(f.CPUUsPostgres+o.CPUUsPostgres/float64(runs))
	f.RSSMB = max(f.RSSMB, o.RSSMB)
}

// against sets the ratios to another figure. CPU is that of a recipient, seconds are those of all.
func (f *figure) against(o figure, name string) {
	f.Ratio = round((f.CPUUsLemma + f.CPUUsPostgres) / (o.CPUUsLemma + o.CPUUsPostgres))
	f.RatioSeconds, f.Against = round(f.Seconds/o.Seconds), "cpu and seconds of "+name
}

func round(x float64) float64 {
	f, _ := strconv.ParseFloat(fmt.Sprintf("%.4g", x), 64)
	return f
}

func selfCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// clusterCPU adds up the postmaster, its children, and those of its children
// that have ended. It is 0 when the cluster is not on this machine.
func clusterCPU(postmaster int) time.Duration {
	if postmaster == 0 {
		return 0
	}
	var ticks int64
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// Fields are counted from behind the command, which may hold blanks (proc(5)).
		f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		switch {
		case strings.Split(file, "/")[2] == strconv.Itoa(postmaster):
			ticks += field(f, 11) + field(f, 12) + field(f, 13) + field(f, 14)
		case field(f, 1) == int64(postmaster):
			ticks += field(f, 11) + field(f, 12)
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on Linux
}

func field(f []string, i int) int64 {
	n, _ := strconv.ParseInt(f[i], 10, 64)
	return n
}

func peakMB() float64 {
	raw, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb / 1024
		}
	}
	return 0
}
