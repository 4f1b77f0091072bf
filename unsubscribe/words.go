package unsubscribe

import (
	_ "embed"
	"encoding/json"
)

// words are the texts of the page in one language.
type words struct {
	Title        string `json:"title"` // unless the workspace has a title
	Choose       string `json:"choose"`
	Save         string `json:"save"`
	Part         string `json:"part"` // with the numbers of the first topic, of the last, and of all
	Previous     string `json:"previous"`
	Next         string `json:"next"`
	Unsubscribe  string `json:"unsubscribe"` // unless the workspace has a label
	Unsubscribed string `json:"unsubscribed"`
	Resubscribe  string `json:"resubscribe"`
	Saved        string `json:"saved"`
	Blocked      string `json:"blocked"` // by a bounce, a complaint, or by the sender
	Note         string `json:"note"`
}

//go:embed words.json
var wordsJSON []byte

// wordsOf has the words of each language of workspaces.Languages.
var wordsOf = readWords()

func readWords() (all map[string]words) {
	if err := json.Unmarshal(wordsJSON, &all); err != nil {
		panic("words.json: " + err.Error()) // it is compiled in
	}
	return all
}
