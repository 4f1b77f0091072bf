package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"lemma/dev/sink"
)

// sinkProcess is the mail server that the benchmarks send to, the command `lemma
// sink`. It is a process of its own, so that its CPU time is not counted.
type sinkProcess struct {
	cmd     *exec.Cmd
	address string
	port    int
	web     string // URL of the server for Amazon SES
	hooks   string // URL of the server for webhooks
	roots   *x509.CertPool
}

// ownProcess is a command of this program that ends with it.
func ownProcess(ctx context.Context, command string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func startSink(ctx context.Context) (*sinkProcess, error) {
	cmd, err := ownProcess(ctx, "sink")
	if err != nil {
		return nil, err
	}
	s := &sinkProcess{cmd: cmd}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the sink: %w", err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("start the sink: %w", err)
	}
	parts := strings.Fields(line)
	if len(parts) != 4 {
		return nil, fmt.Errorf("start the sink: it prints %q", line)
	}
	s.address, s.web, s.hooks = parts[0], "https://"+parts[1], "http://"+parts[2]+sink.WebhookPath
	der, _ := base64.StdEncoding.DecodeString(parts[3])
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("start the sink: %w", err)
	}
	s.roots = x509.NewCertPool()
	s.roots.AddCert(certificate)
	addr, err := net.ResolveTCPAddr("tcp", s.address)
	if err != nil {
		return nil, err
	}
	s.port = addr.Port
	return s, nil
}

func (s *sinkProcess) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

func (s *sinkProcess) reset() error { return sink.Reset(s.address) }

// seen returns how many of n recipients got no message, and how many got too many.
func (s *sinkProcess) seen(n int) (missing, duplicates int) {
	x, err := sink.Ask(s.address, 1, int64(n))
	if err != nil {
		return n, 0
	}
	return int(x.Missing), int(x.Duplicates)
}

// webhooks returns how many webhooks have arrived, and how many more than once.
func (s *sinkProcess) webhooks() (distinct, duplicates int) {
	x, err := sink.Ask(s.address, 1, 0)
	if err != nil {
		return 0, 0
	}
	return int(x.Distinct), int(x.Duplicates)
}

// benchKey is a provider's secrets with a new RSA key of 2,048 bits.
func benchKey() []byte {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	der := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	secret, _ := json.Marshal(map[string]string{"dkim_private_key": string(der)})
	return secret
}
