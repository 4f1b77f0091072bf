package audience

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestNoiseFromMySQLServers sends random bytes, alone and as packets, in every
// phase of a conversation.
func TestNoiseFromMySQLServers(t *testing.T) {
	a := New(nil, nil, hostileOptions)
	goroutines := runtime.NumGoroutine()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	phases := []string{
		"greeting", "login", "select connection_id", "set session sql", "start transaction", "select @@", "show grants", "select id",
		"select audience", "execution", "rows",
	}
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	noises := make([][]byte, rounds*len(phases))
	for i := range noises {
		noises[i] = noisePackets(random)
	}
	atOnce(len(noises), func(i int) {
		f, phase, noise := newFakeMySQL(t), phases[i/rounds], noises[i]
		if phase == "greeting" {
			f.greeting = noise
		}
		f.reply = func(text string, command byte) []byte {
			switch {
			case strings.HasPrefix(text, phase), phase == "execution" && command == comExecute:
				return noise
			case phase == "rows" && command == comExecute:
				return slicesOf(twoColumns(), noise)
			}
			return nil
		}
		f.serve()
		if err := attack(t, a, f.target(), phase); err == nil && phase == "greeting" {
			t.Errorf("%s: noise was accepted: %x", phase, noise)
		}
		f.Close()
		f.open.Wait()
	})
	waitForGoroutines(t, goroutines)
}

// noisePackets are bytes, packets of bytes, or packets that begin like those of
// a response.
func noisePackets(random *rand.Rand) []byte {
	bytesOf := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	if random.IntN(4) == 0 {
		return bytesOf(1 + random.IntN(200))
	}
	var out []byte
	for number := range 1 + random.IntN(5) {
		body := bytesOf(1 + random.IntN(40))
		if random.IntN(2) == 0 {
			body[0] = []byte{0x00, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0x01, 0x02, 10}[random.IntN(9)]
		}
		out = append(out, packet(byte(number+1), body)...)
	}
	return out
}
