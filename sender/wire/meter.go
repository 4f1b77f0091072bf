package wire

import (
	"errors"
	"net"
	"net/http"
	"sync/atomic"
)

// meter is a connection that ends when the server sends more than answers need. HTTP/2 lets it
// send frames at any time, without end, each of which costs time: pings, settings, and frames of
// types that do not exist. Package net/http bounds answers, and nothing else.
//
// What a server needs beside its answers is a part of the bodies that it receives, for frames that
// let the client send more: some 100 bytes for 4 KiB, if the server reads them slowly. An honest
// server that needs more still loses no call: after half of what it may send, the connection gets
// no more requests.
type meter struct {
	net.Conn
	left atomic.Int64 // bytes that the server may still send
	cuts int64        // answers that were cut, up to mostCuts; guarded by the pool
}

// Bytes that a server may send.
const (
	mostFrames   = 256 << 10          // beside its answers: TLS, and frames
	mostOfAnswer = 9 * mostAnswer / 4 // while a request is in progress: of one that is cut as much again is on its way
	mostBeside   = 2 << 10            // for each answer, beside nine quarters of what it has
	ofBody       = 8                  // this part of a request's body
	muchFrames   = 64 << 10           // more is a flood, after which the next connection waits
	mostCuts     = 64                 // answers that were cut, and whose rest is on its way
)

var errTooMuch = errors.New("the server sends too much beside its answers")

func newMeter(conn net.Conn) *meter {
	m := &meter{Conn: conn}
	m.left.Store(mostFrames)
	return m
}

// begin lets the server send an answer.
func (m *meter) begin() { m.left.Add(mostOfAnswer) }

// send lets it send what it needs to receive a body of so many bytes.
func (m *meter) send(body int) { m.left.Add(int64(body / ofBody)) }

// end takes back what an answer of so many bytes did not need, while so many other requests are in
// progress. So what was sent beside the answers counts for as long as the connection lasts. Of an
// answer that is cut the rest may still come.
func (m *meter) end(answer int64, others int) {
	if answer >= mostAnswer {
		m.cuts = min(m.cuts+1, mostCuts)
	}
	most := mostFrames + int64(others)*mostOfAnswer + m.cuts*mostAnswer
	if left := m.left.Add(min(mostOfAnswer, mostBeside+9*answer/4) - mostOfAnswer); left > most {
		m.left.CompareAndSwap(left, most)
	}
}

// spent reports that the server has sent so much beside its answers that the connection should get no
// more requests, whatever it has sent of the answers in progress.
func (m *meter) spent() bool { return m.left.Load() < mostFrames/2 }

// flooded reports, while no request is in progress, that the server has sent much beside its answers:
// one that ends each connection in time could do so for each.
func (m *meter) flooded() bool { return m.left.Load() < mostFrames-muchFrames }

// Read is part of net.Conn.
func (m *meter) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.left.Add(-int64(n)) < 0 {
		_ = m.Close()
		return 0, errTooMuch
	}
	return n, err
}

// bytesOf is about how many bytes an answer had.
func bytesOf(header http.Header, body int) (n int64) {
	n = int64(body)
	for name, values := range header {
		for _, v := range values {
			n += int64(len(name) + len(v) + 4)
		}
	}
	return n
}
