package unsubscribe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"lemma"
	"lemma/suppression"
	"lemma/workspaces"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

var page = template.Must(template.New("page").Parse(pageHTML))

// view is what the page shows.
type view struct {
	Language     string
	Style        template.CSS
	Title, Text  string
	Address      string // partly hidden
	Words        words
	Label        string // of the button that unsubscribes
	Saved        bool
	Unsubscribed bool
	Blocked      bool // by another cause than unsubscribed
	Topics       []topicView
	Part         string // which topics are shown, if these are not all
	Previous     int    // page; 0: none
	Next         int    // page; 0: none
}

type topicView struct {
	ID, Name, Description string
	Subscribed            bool
}

// answer is the body of an answer, and the style of a page.
type answer struct {
	body  []byte
	style template.CSS
	plain bool
	saved string // what the page says of a form that was carried out
}

var unsubscribed = answer{body: []byte("Unsubscribed."), plain: true}

func (a answer) write(w http.ResponseWriter) {
	if a.plain {
		plain(w, http.StatusOK, string(a.body))
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policy(string(a.style)))
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	_, _ = w.Write(a.body)
}

// render makes the page with the state that is stored.
func (p *Pages) render(ctx context.Context, v visit, saved bool) (answer, error) {
	ws, err := p.Workspaces.Get(ctx, v.workspace)
	if err != nil {
		return answer{}, fmt.Errorf("show preference page: %w", err)
	}
	prefs, err := p.Suppressions.PreferencesOf(ctx, v.workspace, v.reader, v.topic, v.page-1)
	if err != nil {
		return answer{}, err
	}
	shown := newView(ws.Page, prefs, saved)
	shown.paginate(v.page, prefs.TopicCount)
	var out bytes.Buffer
	if err := page.Execute(&out, shown); err != nil {
		return answer{}, fmt.Errorf("render preference page: %w", err)
	}
	a := answer{body: bytes.Clone(out.Bytes()), style: shown.Style} // the buffer may be twice as large
	if saved {
		a.saved = shown.Words.Saved
	}
	return a, nil
}

func newView(s workspaces.Page, p suppression.Preferences, saved bool) view {
	language := cmp.Or(s.Language, workspaces.Languages[0])
	text := wordsOf[language]
	v := view{Language: language, Style: style(s), Title: cmp.Or(s.Title, text.Title), Text: s.Text, Address: masked(p.Channel, p.Address),
		Words: text, Label: cmp.Or(s.UnsubscribeLabel, text.Unsubscribe), Saved: saved, Unsubscribed: p.Has(suppression.Unsubscribed)}
	for _, s := range p.Suppressions {
		v.Blocked = v.Blocked || s.Cause != suppression.Unsubscribed
	}
	for _, t := range p.Topics {
		v.Topics = append(v.Topics, topicView{lemma.FormatID(lemma.PrefixTopic, t.TopicID), t.Name, t.Description, t.Subscribed})
	}
	return v
}

// paginate sets which of all topics the page shows, and the pages of the others.
func (v *view) paginate(page, all int) {
	before := (page - 1) * suppression.TopicsPerPage
	if last := before + len(v.Topics); all > len(v.Topics) {
		v.Part = fmt.Sprintf(v.Words.Part, before+1, last, all)
		if last < all {
			v.Next = page + 1
		}
	}
	v.Previous = page - 1
}

// mostPages bounds the topics that are skipped.
const mostPages = 500

// pageOf is the number of the page in a query, from 1 on.
func pageOf(q url.Values) int {
	n, _ := strconv.Atoi(q.Get("page"))
	return min(max(n, 1), mostPages)
}

// policy lets a browser load nothing, apply one style and send the forms back.
func policy(style string) string {
	allowed := "'none'"
	if style != "" {
		sum := sha256.Sum256([]byte(style))
		allowed = "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; style-src " + allowed + "; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// Colours of a workspace that has chosen none.
const (
	defaultColor      = "#1f5fbf"
	defaultBackground = "#ffffff"
)

// style is the style of a workspace's page. Texts on a colour are black or white, whichever
// has more contrast with it.
func style(s workspaces.Page) template.CSS {
	color, background := cmp.Or(s.Color, defaultColor), cmp.Or(s.Background, defaultBackground)
	return template.CSS(strings.NewReplacer("$background", background, "$color", color, "$text", textOn(background), //nolint:gosec // colours
		"$label", textOn(color)).Replace(pageCSS))
}

// textOn is the colour of a text on another one (WCAG 2.2, relative luminance).
func textOn(color string) string {
	if workspaces.Luminance(color) > 0.179 {
		return "#000000"
	}
	return "#ffffff"
}

// masked hides a part of an address: a link may be forwarded.
func masked(channel lemma.Channel, address string) string {
	const hidden = "•••"
	switch local, domain, _ := strings.Cut(address, "@"); {
	case address == "" || channel == lemma.Push:
		return ""
	case channel == lemma.Email:
		first, n := utf8.DecodeRuneInString(local)
		if n == 0 {
			return ""
		}
		return string(first) + hidden + "@" + domain
	}
	return hidden + address[max(0, len(address)-3):]
}
