package remote

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"lemma/client"
)

// Providers are the commands for providers.
type Providers struct {
	Test providersTestCommand `cmd:"" help:"Send a test message over a provider, and print the conversation with its server."`
}

type providersTestCommand struct {
	output
	Provider string     `arg:"" help:"The provider's id."`
	To       string     `required:"" help:"The recipient: an address of the provider's channel."`
	From     string     `placeholder:"EMAIL" help:"The sender of an email; required for email."`
	Subject  string     `help:"The subject of an email, or the title of a push."`
	Text     string     `help:"The text."`
	Template string     `help:"The id of a template, instead of a subject and a text."`
	Version  int        `help:"The version of the template; default: the newest."`
	Data     objectFlag `placeholder:"JSON" help:"The variables of the template."`
}

func (p providersTestCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	m := client.ProviderTestRequest{To: p.To, Subject: p.Subject, Text: p.Text, TemplateID: p.Template, Version: p.Version, Data: p.Data.raw()}
	if p.From != "" {
		m.From = &client.Sender{Email: p.From}
	}
	return p.call(cfg, func(c *client.Client) error {
		t, err := c.TestProvider(ctx, p.Provider, m)
		if err != nil {
			return err
		}
		return p.print(out, t, func(out io.Writer) error { return printTest(out, t) })
	})
}

// printTest prints the conversation and then the result.
func printTest(out io.Writer, t client.ProviderTest) error {
	for _, s := range t.Conversation {
		for line := range strings.SplitSeq(stepText(s), "\n") {
			if _, err := fmt.Fprintf(out, "%8.1f ms  %-9s  %s\n", s.OffsetMs, s.Type, Printable(line)); err != nil {
				return err
			}
		}
	}
	definite := ""
	if t.Definite {
		definite = "yes"
	}
	return printFields(out, "outcome", t.Outcome, "reason", or(t.Reason, ""), "failure of", or(t.FailureOf, ""), "definite", definite,
		"code", or(t.Code, ""), "detail", or(t.Detail, ""), "carrier id", or(t.CarrierID, ""),
		"retry after", seconds(t.RetryAfterSeconds), "took", strconv.FormatFloat(t.DurationMs, 'f', 1, 64)+" ms", "effect", t.Effect)
}

func seconds(n *float64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%g s", *n)
}

func stepText(s client.ProviderTestStep) string {
	switch {
	case s.TLS != nil:
		return strings.TrimSpace(s.TLS.Version + " " + s.TLS.Cipher + " " + strings.Join(s.TLS.CertificateNames, ", "))
	case s.Text != nil && *s.Text != "":
		return *s.Text
	case s.Bytes != nil:
		return fmt.Sprintf("(%d bytes)", *s.Bytes)
	}
	return ""
}
