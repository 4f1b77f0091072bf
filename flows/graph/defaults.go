package graph

import (
	"cmp"
	"strings"

	"lemma/mail"
)

// inherit copies the defaults into the send nodes that lack them, in the definition and in
// the tree of fields. The sender is only for nodes whose channel has one.
func inherit(d *Definition, tree map[string]any) {
	given, _ := tree["defaults"].(map[string]any)
	nodes, _ := tree["nodes"].(map[string]any)
	if d.Defaults == nil {
		return
	}
	for id, n := range d.Nodes {
		fields, _ := nodes[id].(map[string]any)
		if n.Type != Send || fields == nil {
			continue
		}
		sender := hasEnvelope(cmp.Or(n.Channel, d.Defaults.Channel))
		for name, value := range given {
			if _, own := fields[name]; !own && (sender || name != "from" && name != "reply_to") {
				fields[name] = value
				d.Defaults.into(&n, name)
				d.inherited = append(d.inherited, inherited{at("/nodes", id, name), at("/defaults", name)})
			}
		}
		d.Nodes[id] = n
	}
}

// into copies one field into a node that lacks it.
func (d *Defaults) into(n *Node, field string) {
	switch field {
	case "channel":
		n.Channel = d.Channel
	case "provider_id":
		n.ProviderID = d.ProviderID
	case "from":
		n.From = d.From
	case "reply_to":
		n.ReplyTo = d.ReplyTo
	case "strategy":
		n.Strategy = d.Strategy
	}
}

// defaults checks the defaults at their own place, so that a fault is neither repeated for
// each node nor hidden when no node uses them.
func (c *checker) defaults() {
	d := c.def.Defaults
	if d == nil {
		return
	}
	oneOf(c, "/defaults/channel", d.Channel, channels...)
	oneOf(c, "/defaults/strategy", d.Strategy, "at_least_once", "at_most_once")
	if c.facts.Published || d.From == nil && d.ReplyTo == "" {
		return
	}
	e := mail.Envelope{ReplyTo: d.ReplyTo}
	if d.From != nil {
		e.FromEmail, e.FromName = d.From.Email, d.From.Name
	}
	for _, f := range e.Faults() {
		if d.From != nil || f.Pointer == "/reply_to" {
			c.fault("/defaults"+f.Pointer, f.Code, "%s", f.Detail)
		}
	}
}

// Place is where the document has the value that a pointer into a node names: there, or
// among the defaults that the node inherits.
func (d *Definition) Place(pointer string) string {
	for _, taken := range d.inherited {
		if pointer == taken.node || strings.HasPrefix(pointer, taken.node+"/") {
			return taken.defaults + strings.TrimPrefix(pointer, taken.node)
		}
	}
	return pointer
}

// inherited is a field of a node that stands among the defaults; both are pointers.
type inherited struct{ node, defaults string }
