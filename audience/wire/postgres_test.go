package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

func message(kind byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

// TestSettingsThatServersReport has a server that reports the same few settings
// repeatedly, as after each transaction.
func TestSettingsThatServersReport(t *testing.T) {
	m := &Meter{limit: 1 << 20}
	f := NewPostgres(nil, m)
	for i := range 10_000 {
		setting := fmt.Appendf(nil, "TimeZone\x00zone %d\x00", i)
		if err := f.scan(message('S', setting)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10_000 {
		if f.scan(message('S', fmt.Appendf(nil, "name %d\x00value\x00", i))) != nil {
			return
		}
	}
	t.Error("settings of 10,000 names were accepted")
}

// TestMessagesWithoutTheirNumberOfColumns has a row and a description that are too short to
// have one: what follows is not taken for it.
func TestMessagesWithoutTheirNumberOfColumns(t *testing.T) {
	for _, kind := range []byte{'D', 'T'} {
		for bytes := range 2 {
			f := NewPostgres(nil, &Meter{limit: 1 << 20})
			if err := f.scan(message(kind, make([]byte, bytes))); !errors.Is(err, ErrMalformed) {
				t.Errorf("a message %q of %d bytes: %v", kind, bytes, err)
			}
		}
	}
}

// TestFilterFramesAnySplit has messages that arrive byte by byte or all at once.
func TestFilterFramesAnySplit(t *testing.T) {
	stream := bytes.Join([][]byte{message('Z', []byte("I")), message('S', []byte("a\x00b\x00")), message('1', nil),
		message('D', make([]byte, 300)), message('S', []byte("c\x00d\x00"))}, nil)
	for size := 1; size <= len(stream); size++ {
		f := NewPostgres(nil, &Meter{limit: 1 << 20})
		for at := 0; at < len(stream); at += size {
			if err := f.scan(stream[at:min(at+size, len(stream))]); err != nil {
				t.Fatalf("in pieces of %d: %v", size, err)
			}
		}
		if f.sum != 8+2*statusMemory || f.left != 0 || f.have != 0 {
			t.Fatalf("in pieces of %d: %+v", size, f)
		}
	}
}

// TestMessagesThatTheDriverKeeps has messages of Postgres that the driver keeps in a
// larger form while the connection is open.
func TestMessagesThatTheDriverKeeps(t *testing.T) {
	t.Parallel()
	tiny := func(i int) []byte { return message('S', fmt.Appendf(nil, "%d\x00\x00", i)) }
	settings := 0
	f := NewPostgres(nil, &Meter{limit: 1 << 20})
	for ; settings < 10_000 && f.scan(tiny(settings)) == nil; settings++ {
	}
	if settings > maxStatuses/statusMemory {
		t.Errorf("%d settings of some bytes were accepted", settings)
	}
	for _, kind := range "RKv" {
		f := NewPostgres(nil, &Meter{limit: 1 << 20})
		if err := f.scan(message(byte(kind), make([]byte, maxLoginPacket))); err != nil {
			t.Errorf("%c: %v", kind, err)
		}
		if f.scan(message(byte(kind), make([]byte, maxLoginPacket+1))) == nil {
			t.Errorf("%c of %d bytes was accepted", kind, maxLoginPacket+1)
		}
	}
	for _, kind := range "DT" {
		if NewPostgres(nil, &Meter{limit: 1 << 20}).scan(message(byte(kind), []byte{0})) == nil {
			t.Errorf("%c without a number of columns was accepted", kind)
		}
	}
}
