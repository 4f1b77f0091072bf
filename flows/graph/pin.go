package graph

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Pin writes every template's version into the definition, so that a published version
// does not change when a template does. The rest stays as written.
func Pin(raw json.RawMessage, pins map[string]int) (json.RawMessage, error) {
	if len(pins) == 0 {
		return raw, nil
	}
	var document, nodes map[string]json.RawMessage
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(document["nodes"], &nodes); err != nil {
		return nil, err
	}
	for id, version := range pins {
		var node map[string]json.RawMessage
		if err := json.Unmarshal(nodes[id], &node); err != nil {
			return nil, err
		}
		node["template_version"] = json.RawMessage(strconv.Itoa(version))
		made, err := plainJSON(node)
		if err != nil {
			return nil, err
		}
		nodes[id] = made
	}
	made, err := plainJSON(nodes)
	if err != nil {
		return nil, err
	}
	document["nodes"] = made
	return plainJSON(document)
}

// plainJSON marshals without escaping <, > and &, which conditions contain.
func plainJSON(v any) (json.RawMessage, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(out.Bytes()), nil
}
