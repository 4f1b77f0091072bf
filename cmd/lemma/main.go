// Command lemma is the whole program: the API, the workers, and the tools to
// run them. This package is the switchboard: it reads the configuration, wires
// the rooms together and knows all of them; no room knows it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, os.Args[1:], os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lemma:", err)
		os.Exit(1)
	}
}
