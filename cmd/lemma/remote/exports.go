package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"lemma/client"
)

// Exports are the commands for exports.
type Exports struct {
	List     exportsListCommand     `cmd:"" help:"List exports, newest first."`
	Create   exportsCreateCommand   `cmd:"" help:"Export rows to a file."`
	Get      exportsGetCommand      `cmd:"" help:"Show an export, with a link to its file."`
	Download exportsDownloadCommand `cmd:"" help:"Download the file of an export, and check it."`
	Cancel   exportsCancelCommand   `cmd:"" help:"End an export that is queued, running or publishing."`
	Delete   exportsDeleteCommand   `cmd:"" help:"Delete an export with its file."`
}

type exportsListCommand struct{ listing }

func (l exportsListCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return l.call(cfg, func(c *client.Client) error {
		return list(l.listing, out, c.ListExports(ctx), "ID|TYPE|FORMAT|STATUS|ROWS|BYTES|CREATED|EXPIRES", func(x client.Export) []string {
			return []string{x.ID, x.Type, x.Format, x.Status, fmt.Sprint(x.Progress.Rows), fmt.Sprint(x.Progress.Bytes), stamp(x.CreatedAt),
				stampOr(x.ExpiresAt, "")}
		})
	})
}

type exportsCreateCommand struct {
	output
	Type       string        `arg:"" help:"Rows of which type: notifications, attempts, enrollments, events, refusals, suppressions, audit_log."`
	Format     string        `default:"csv" enum:"csv,ndjson,parquet" help:"Format of the file: ${enum}."`
	Formulas   string        `default:"escape" enum:"escape,keep" help:"What happens to texts in CSV that a spreadsheet would compute: ${enum}."`
	Campaign   string        `help:"Only rows of this campaign."`
	Flow       string        `help:"Only rows of this flow."`
	Status     string        `help:"Only rows with this status."`
	Outcome    string        `help:"Only attempts with this outcome."`
	Reason     string        `help:"Only refusals with this reason."`
	Name       string        `help:"Only events with this name."`
	Profile    string        `help:"Only rows of this profile."`
	Channel    string        `help:"Only rows of this channel."`
	Cause      string        `help:"Only suppressions with this cause."`
	After      time.Time     `placeholder:"TIME" help:"Only rows that were created at this time or later (RFC 3339)."`
	Before     time.Time     `placeholder:"TIME" help:"Only rows that were created before this time (RFC 3339)."`
	Follow     bool          `help:"Print the progress until the export has ended."`
	OutputFile string        `name:"output" short:"o" placeholder:"FILE" help:"Download the file to this path when the export is completed; implies --follow."`
	Every      time.Duration `default:"1s" help:"With --follow: time between two requests."`
}

func (n exportsCreateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	if _, err := os.Lstat(n.OutputFile); n.OutputFile != "" && err == nil {
		return fmt.Errorf("%s exists", n.OutputFile)
	}
	return n.call(cfg, func(c *client.Client) error {
		x, err := c.CreateExport(ctx, client.NewExport{Type: n.Type, Format: n.Format, CSVFormulas: n.Formulas, Filters: client.ExportFilters{
			CampaignID: n.Campaign, FlowID: n.Flow, Status: n.Status, Outcome: n.Outcome, Reason: n.Reason, Name: n.Name, ProfileKey: n.Profile,
			Channel: n.Channel, Cause: n.Cause, CreatedAfter: notZero(n.After), CreatedBefore: notZero(n.Before)}})
		if err == nil && (n.Follow || n.OutputFile != "") {
			x, err = n.follow(ctx, c, x, out)
		}
		if err != nil {
			return err
		}
		if err := n.export(out, x); err != nil || n.OutputFile == "" {
			return err
		}
		return download(ctx, c, x, n.OutputFile)
	})
}

// follow prints the progress when it changes, until the export has ended. An export without a
// file is an error.
func (n exportsCreateCommand) follow(ctx context.Context, c *client.Client, x client.Export, out io.Writer) (client.Export, error) {
	last := ""
	for {
		line := fmt.Sprintf("%s: %d rows, %d bytes", x.Status, x.Progress.Rows, x.Progress.Bytes)
		if line != last && !n.JSON {
			fmt.Fprintln(out, line)
		}
		last = line
		if x.Ended() {
			switch x.Status {
			case "completed":
				return x, nil
			case "failed":
				return x, fmt.Errorf("the export failed: %s", Printable(or(x.StatusDetail, or(x.StatusReason, ""))))
			}
			return x, fmt.Errorf("the export is %s", x.Status)
		}
		select {
		case <-ctx.Done():
			return x, ctx.Err()
		case <-time.After(max(n.Every, 100*time.Millisecond)):
		}
		var err error
		if x, err = c.GetExport(ctx, x.ID); err != nil {
			return x, err
		}
	}
}

// export prints an export.
func (o output) export(out io.Writer, x client.Export) error {
	return o.print(out, x, func(out io.Writer) error {
		fields := []string{"id", x.ID, "type", x.Type, "format", x.Format, "status", x.Status, "because of", or(x.StatusReason, ""),
			"detail", or(x.StatusDetail, ""), "rows", fmt.Sprint(x.Progress.Rows), "bytes", fmt.Sprint(x.Progress.Bytes),
			"created", stamp(x.CreatedAt), "finished", stampOr(x.FinishedAt, ""), "expires", stampOr(x.ExpiresAt, "")}
		if d := x.Download; d != nil {
			fields = append(fields, "sha256", d.SHA256, "link", d.URL, "valid until", stamp(d.ExpiresAt))
		}
		return printFields(out, fields...)
	})
}

// ofExport is a command for one export.
type ofExport struct {
	ID string `arg:"" help:"The export's id."`
}

type exportsGetCommand struct {
	output
	ofExport
}

func (g exportsGetCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return g.call(cfg, func(c *client.Client) error {
		x, err := c.GetExport(ctx, g.ID)
		if err != nil {
			return err
		}
		return g.export(out, x)
	})
}

type exportsDownloadCommand struct {
	output
	ofExport
	File string `arg:"" help:"The path of the file."`
}

func (d exportsDownloadCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return d.call(cfg, func(c *client.Client) error {
		x, err := c.GetExport(ctx, d.ID)
		if err != nil {
			return err
		}
		if err := download(ctx, c, x, d.File); err != nil {
			return err
		}
		return d.export(out, x)
	})
}

// download writes the file of an export to a new file, whose checksum it compares.
func download(ctx context.Context, c *client.Client, x client.Export, path string) (err error) {
	if x.Download == nil {
		return fmt.Errorf("the export is %s and has no file that this key may read", x.Status)
	}
	from, err := x.Download.Open(ctx, c)
	if err != nil {
		return err
	}
	defer from.Close()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(file, io.TeeReader(from, sum))
	if err = errors.Join(err, file.Close()); err == nil && hex.EncodeToString(sum.Sum(nil)) != x.Download.SHA256 {
		err = errors.New("the file differs from what was exported: its checksum is wrong")
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

type exportsCancelCommand struct {
	output
	ofExport
}

func (k exportsCancelCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return k.call(cfg, func(c *client.Client) error {
		x, err := c.CancelExport(ctx, k.ID)
		if err != nil {
			return err
		}
		return k.export(out, x)
	})
}

type exportsDeleteCommand struct {
	output
	ofExport
}

func (d exportsDeleteCommand) run(ctx context.Context, cfg Config, _ io.Writer) error {
	return d.call(cfg, func(c *client.Client) error { return c.DeleteExport(ctx, d.ID) })
}
