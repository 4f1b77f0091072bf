// Command lemma is the one program of Lemma: the API, the workers, and the tools for
// operators and developers. This package reads the settings and has one small file
// for each command. The commands call package server, package remote and dev/...
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
	err := Run(ctx, os.Args[1:], os.LookupEnv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lemma:", err)
		os.Exit(1)
	}
}
