package chaos

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// The ports of servers that end and start again are below those that systems give to
// connections, so that no connection uses one meanwhile.
const (
	firstPort = 12_000
	ports     = 18_000
)

var port atomic.Uint32

func init() { port.Store(uint32(os.Getpid()) * 97) }

// freeAddress is an address of this machine that no other server of this process gets.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range ports {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+port.Add(1)%ports)
		if free, err := net.Listen("tcp", address); err == nil {
			_ = free.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}
