package campaigns

import (
	"cmp"
	"fmt"
	"slices"

	"lemma/message"
)

// mostUntracked is how many links a preview warns of.
const mostUntracked = 10

// untracked counts the rendered messages of a content by their links that will not be
// tracked.
type untracked struct {
	content *message.Compiled
	link    string // a sample of the link to unsubscribe
	rows    map[leftLink]int
}

type leftLink struct {
	number int
	reason string
}

// untrackedOf returns the content to render, and what counts its links. They are those of
// the content itself: nothing is replaced.
func (c *Campaigns) untrackedOf(now Campaign, content *message.Compiled) (untracked, error) {
	u := untracked{content, message.SampleUnsubscribeURL(c.cfg.PublicURL()), map[leftLink]int{}}
	if c.cfg.PublicURL() == "" || !content.Tracks(now.Transactional).Clicks {
		return u, nil
	}
	var err error
	u.content, err = content.Tracked(message.Track{Clicks: true})
	return u, err
}

// render renders a message as it is written, and counts the links that would not be tracked.
func (u untracked) render(payload string) (message.Content, [][2]string, error) {
	return u.content.RenderTracked(payload, u.link, message.Tracking{
		Own:   u.link,
		Click: func(int, string) string { return "" },
		Left:  func(number int, reason string) { u.rows[leftLink{number, reason}]++ },
	}, message.MaxWait)
}

// warnings are sentences about the first links.
func (u untracked) warnings(variant string, rendered int64) (all []string) {
	written := u.content.Links()
	for _, l := range sortedLinks(u.rows) {
		text := fmt.Sprintf("in %d of %d rendered messages, clicks on link %d (%s) are not tracked, since ",
			u.rows[l], rendered, l.number, short(written[l.number]))
		switch l.reason {
		case message.LongURL:
			text += fmt.Sprintf("its URL is longer than %d bytes", message.MaxTracked)
		default:
			text += fmt.Sprintf("the HTML is longer than %d bytes", message.MaxRendered)
		}
		if variant != "" {
			text = "variant " + variant + ": " + text
		}
		all = append(all, text)
	}
	return all[:min(len(all), mostUntracked)]
}

func sortedLinks(rows map[leftLink]int) []leftLink {
	all := make([]leftLink, 0, len(rows))
	for l := range rows {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b leftLink) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.reason, b.reason))
	})
	return all
}

// short is the beginning of a URL as it is written.
func short(url string) string {
	const most = 60
	runes := []rune(url)
	if len(runes) <= most {
		return url
	}
	return string(runes[:most]) + "..."
}
