package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"lemma/abtest"
)

// abtestCommand recomputes what the API shows of experiments, without a connection.
type abtestCommand struct {
	Assign abtestAssignCommand `cmd:"" help:"Compute which group and variant profile keys are assigned to, and print them as CSV. Nothing is connected to."`
}

type abtestAssignCommand struct {
	File       string   `arg:"" help:"A file of profile keys, one on each line; - for the standard input."`
	Experiment string   `help:"The id of a campaign's experiment, such as itr_...: splits by its three salts."`
	Salt       string   `help:"The salt of one split, such as that of a split node: flw_.../node."`
	Weights    []int    `required:"" help:"The weights of the variants or arms, in their order."`
	Names      []string `help:"Their names; default: 0, 1, 2 ..."`
	Sample     float64  `name:"sample-percent" default:"100" help:"The sample of the experiment, in percent."`
	Holdout    float64  `name:"holdout-percent" default:"0" help:"The holdout of the experiment, in percent."`
}

func (a abtestAssignCommand) run(_ context.Context, _ Config, out io.Writer) error {
	if err := a.check(); err != nil {
		return err
	}
	in := io.Reader(os.Stdin)
	if a.File != "-" {
		file, err := os.Open(a.File)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	return a.assign(in, out)
}

func (a abtestAssignCommand) check() error {
	sum := 0
	for _, w := range a.Weights {
		if w < 0 {
			return errors.New("--weights: must not be negative")
		}
		sum += w
	}
	switch {
	case (a.Experiment == "") == (a.Salt == ""):
		return errors.New("give either --experiment or --salt")
	case sum == 0:
		return errors.New("--weights: one must be positive")
	case len(a.Names) > 0 && len(a.Names) != len(a.Weights):
		return fmt.Errorf("--names: must be as many as --weights; there are %d names for %d weights", len(a.Names), len(a.Weights))
	case a.Sample < 0 || a.Sample > 100 || a.Holdout < 0 || a.Holdout > 100:
		return errors.New("a percentage must be between 0 and 100")
	}
	return nil
}

// assign writes one line for each profile key.
func (a abtestAssignCommand) assign(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	table := csv.NewWriter(out)
	line, header := a.splitLine()
	_ = table.Write(header)
	for lines.Scan() {
		key := strings.TrimSuffix(lines.Text(), "\r")
		if err := table.Write(append([]string{key}, line(key)...)); err != nil {
			return err
		}
	}
	table.Flush()
	return errors.Join(lines.Err(), table.Error())
}

// splitLine returns the columns after the profile key, and the names of all columns.
func (a abtestAssignCommand) splitLine() (line func(key string) []string, header []string) {
	bucket := func(n uint64) string { return strconv.FormatUint(n, 10) }
	if a.Salt != "" {
		split := abtest.NewSplit(a.Salt, a.Weights...)
		return func(key string) []string { return []string{a.name(split.Arm(key)), bucket(split.Bucket(key))} },
			[]string{"profile_key", "variant", "bucket"}
	}
	plan := abtest.NewPlan(a.Experiment, a.Weights, a.Sample, a.Holdout)
	return func(key string) []string {
		one, variant := plan.Assign(key), ""
		if one.Group == abtest.Sample {
			variant = a.name(one.Variant)
		}
		return []string{string(one.Group), variant, bucket(one.HoldoutBucket), bucket(one.SampleBucket), bucket(one.VariantBucket)}
	}, []string{"profile_key", "group", "variant", "holdout_bucket", "sample_bucket", "variant_bucket"}
}

func (a abtestAssignCommand) name(i int) string {
	if len(a.Names) > 0 {
		return a.Names[i]
	}
	return strconv.Itoa(i)
}
