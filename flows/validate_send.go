package flows

import (
	"context"
	"fmt"
	"slices"

	"lemma"
	"lemma/audience"
	"lemma/flows/execution"
	"lemma/flows/graph"
	"lemma/message"
)

// checkSend checks a send node.
func (c *checked) checkSend(ctx context.Context, at, id string, n graph.Node) error {
	p, ok, err := named(c, ctx, at+"/provider_id", lemma.PrefixProvider, n.ProviderID, "provider", c.accounts.Get)
	if err != nil {
		return err
	}
	if ok && n.Channel != "" && string(p.Channel) != n.Channel {
		c.fault(at+"/provider_id", "wrong_channel", "this provider carries %s, not %s", p.Channel, n.Channel)
	}
	c.checkAddresses(at, n)
	t, ok, err := named(c, ctx, at+"/template_id", lemma.PrefixTemplate, n.TemplateID, "template", c.templates.Get)
	if err != nil || !ok {
		return err
	}
	if n.Channel != "" && string(t.Channel) != n.Channel {
		c.fault(at+"/template_id", "wrong_channel", "this template is for %s, not %s", t.Channel, n.Channel)
	}
	if _, _, err = named(c, ctx, at+"/topic_id", lemma.PrefixTopic, n.TopicID, "topic", c.topics.Topic); err != nil {
		return err
	}
	version := n.TemplateVersion
	switch {
	case version < 0:
		return nil // the graph reports it
	case version == 0:
		version = t.Version
		c.pins[id] = version
	case version > t.Version:
		c.fault(at+"/template_version", "unknown_version", "the template's newest version is %d", t.Version)
		return nil
	}
	template, err := c.templates.Compiled(ctx, c.ws, t.ID, version)
	if err != nil {
		return err
	}
	c.checkVariables(at+"/template_id", fmt.Sprintf("version %d of the template uses", version), template.Variables())
	used, err := message.CheckHeaders(n.Headers)
	if err != nil {
		return c.collect(at, err)
	}
	c.checkVariables(at+"/headers", "the headers use", used)
	return c.checkPublicURL(at, n, template)
}

// checkPublicURL checks that recipients of marketing can unsubscribe.
func (c *checked) checkPublicURL(at string, n graph.Node, template *message.Compiled) error {
	if c.cfg.PublicURL() != "" {
		return nil
	}
	content, err := template.WithHeaders(message.SentHeaders(template.Channel(), n.Transactional, n.Headers))
	if err == nil {
		err = content.CheckPublicURL(n.Transactional, n.Headers)
	}
	return c.collect(at, err)
}

// checkAddresses checks that the audience has addresses for the channel of a node.
func (c *checked) checkAddresses(at string, n graph.Node) {
	if n.Channel == "" {
		return // the graph reports it
	}
	if c.audience != nil && c.audience.AddressColumn(lemma.Channel(n.Channel)) == "" {
		c.fault(at+"/channel", "wrong_channel", "the audience has no addresses for %s", n.Channel)
	}
}

// checkVariables checks that all variables of a template or the headers are columns or the
// trigger.
func (c *checked) checkVariables(at, what string, variables []string) {
	for _, name := range variables {
		if name == execution.ReservedTrigger {
			continue
		}
		c.used[name] = true
		if c.audience != nil && !c.hasColumn(name) {
			c.fault(at, "unknown_column", "%s %q, which the audience does not have", what, name)
		}
	}
}

func (c *checked) hasColumn(name string) bool {
	return slices.ContainsFunc(c.audience.Columns, func(column audience.Column) bool { return column.Name == name })
}
