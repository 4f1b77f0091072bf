package dial

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// A name with thousands of addresses is not resolved: to sort them takes time.
func TestNamesWithManyAddresses(t *testing.T) {
	t.Parallel()
	for n, works := range map[int]bool{1: true, 200: true, 300: false, 4000: false} {
		server := serveDNS(t, n)
		r := newResolver(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server)
		})
		found, err := r.LookupNetIP(t.Context(), "ip4", "shop.example.")
		if (err == nil) != works || works && len(found) != n {
			t.Errorf("%d addresses: %d, %v", n, len(found), err)
		}
	}
}

// serveDNS answers each question with n addresses, over UDP with none of them if they do not fit.
func serveDNS(t *testing.T, n int) (address string) {
	t.Helper()
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close(); udp.Close() })
	go func() {
		for question := make([]byte, 512); ; {
			m, from, err := udp.ReadFrom(question)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(dnsAnswer(question[:m], n, n > 20), from)
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			var length [2]byte
			_, _ = io.ReadFull(conn, length[:])
			question := make([]byte, binary.BigEndian.Uint16(length[:]))
			_, _ = io.ReadFull(conn, question)
			out := dnsAnswer(question, n, false)
			_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...))
			conn.Close()
		}
	}()
	return tcp.Addr().String()
}

func dnsAnswer(question []byte, n int, truncated bool) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Truncated: truncated}, Questions: m.Questions}
	for i := 0; i < n && !truncated; i++ {
		out.Answers = append(out.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.AResource{A: [4]byte{192, 0, byte(i >> 8), byte(i)}}})
	}
	text, _ := out.Pack()
	return text
}
