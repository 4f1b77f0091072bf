package wire

import "io"

// readSize is how much is read at a time: a record of TLS.
const readSize = 16 << 10

// passed is what a filter passes on to the driver.
type passed struct {
	buffer []byte // what was read last
	bytes  []byte // what is passed on of it
	ready  []byte // the part of bytes that the driver has not read
	err    error  // after ready
}

// read gives the driver what scan passes on of what it reads. The bytes count as those of a row.
func (q *passed) read(p []byte, from io.Reader, scan func([]byte) error, m *Meter) (int, error) {
	if q.buffer == nil {
		q.buffer = make([]byte, readSize)
	}
	for len(q.ready) == 0 {
		if err := q.err; err != nil {
			q.err = nil
			return 0, err
		}
		m.use()
		n, err := from.Read(q.buffer)
		if cap(q.bytes) > 4*readSize {
			q.bytes = nil
		}
		q.bytes = q.bytes[:0]
		if fault := scan(q.buffer[:n]); fault != nil {
			return 0, m.Fail(fault)
		}
		q.ready, q.err = q.bytes, err
	}
	n := copy(p, q.ready)
	q.ready = q.ready[n:]
	return n, m.pass(n)
}

func (q *passed) add(p []byte) { q.bytes = append(q.bytes, p...) }
