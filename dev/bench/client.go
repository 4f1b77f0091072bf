package bench

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"time"
)

// posts are requests that a process of its own sends, the command `lemma client`, so that
// its CPU time is not counted.
type posts struct {
	URL      string
	Clients  int
	Pause    time.Duration // between the starts of two requests; 0: as fast as they are answered
	Requests [][]byte
}

// posted is how long each request took, in ascending order.
type posted struct {
	Took  []time.Duration
	Error string
}

// RunClient reads posts, reports that it is ready, and sends them when a line follows.
func RunClient(ctx context.Context, in io.Reader, out io.Writer) error {
	var p posts
	from := bufio.NewReader(in)
	if err := gob.NewDecoder(from).Decode(&p); err != nil {
		return err
	}
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return err
	}
	if _, err := from.ReadString('\n'); err != nil {
		return err
	}
	var result posted
	var err error
	if result.Took, err = p.send(ctx); err != nil {
		result.Error = err.Error()
	}
	return gob.NewEncoder(out).Encode(result)
}

func (p posts) send(ctx context.Context) ([]time.Duration, error) {
	free, err := newReplayers(ctx, p.URL, p.Clients)
	if err != nil {
		return nil, err
	}
	defer free.close()
	took := make([]time.Duration, len(p.Requests))
	begun := time.Now()
	err = spread(ctx, len(p.Requests), p.Clients, func(i int) error {
		if p.Pause > 0 {
			time.Sleep(time.Until(begun.Add(time.Duration(i) * p.Pause)))
		}
		at := time.Now()
		err := free.use(func(r *replayer) error { return r.accepted(p.Requests[i]) })
		took[i] = time.Since(at)
		return err
	})
	slices.Sort(took)
	return took, err
}

// accepted sends a request, which must be answered with success.
func (r *replayer) accepted(request []byte) error {
	status, body, err := r.exchange(request)
	if err == nil && status >= http.StatusMultipleChoices {
		return fmt.Errorf("the answer is %d %s", status, body)
	}
	return err
}

// clientProcess has read its requests, and waits.
type clientProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startClient(ctx context.Context, p posts) (*clientProcess, error) {
	cmd, err := ownProcess(ctx, "client")
	if err != nil {
		return nil, err
	}
	c := &clientProcess{cmd: cmd}
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the client: %w", err)
	}
	c.out = bufio.NewReader(out)
	if err = gob.NewEncoder(c.in).Encode(p); err == nil {
		_, err = c.out.ReadString('\n')
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the client: %w", err), c.stop())
	}
	return c, nil
}

// run sends the requests and ends the process.
func (c *clientProcess) run() ([]time.Duration, error) {
	var result posted
	_, err := io.WriteString(c.in, "go\n")
	if err == nil {
		err = gob.NewDecoder(c.out).Decode(&result)
	}
	if err == nil && result.Error != "" {
		err = errors.New(result.Error)
	}
	return result.Took, errors.Join(err, c.stop())
}

func (c *clientProcess) stop() error {
	_ = c.in.Close()
	return c.cmd.Wait()
}
