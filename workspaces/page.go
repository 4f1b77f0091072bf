package workspaces

import (
	"context"
	"errors"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
)

// Page is how the preference page of a workspace looks. Empty fields are defaults.
type Page struct {
	Title            string `json:"title,omitempty"`
	Text             string `json:"text,omitempty"`              // below the title; line breaks are kept
	UnsubscribeLabel string `json:"unsubscribe_label,omitempty"` // of the button that unsubscribes from everything
	Color            string `json:"color,omitempty"`             // of buttons, as #rrggbb
	Background       string `json:"background,omitempty"`        // as #rrggbb
	Language         string `json:"language,omitempty"`          // of all other texts: one of Languages
}

// Languages are those of the preference page. The first is the default.
var Languages = []string{"en", "de", "es", "fr", "it", "nl"}

// Limits of the texts of a page, in characters.
const (
	maxTitle = 100
	maxText  = 2000
	maxLabel = 60
)

// PagePatch changes a page; a nil field stays unchanged.
type PagePatch struct{ Title, Text, UnsubscribeLabel, Color, Background, Language *string }

var colors = regexp.MustCompile(`^#[0-9a-f]{6}$`)

func (p PagePatch) check() error {
	var faults []lemma.Field
	fault := func(name, code, detail string) {
		faults = append(faults, lemma.Field{Pointer: "/page/" + name, Code: code, Detail: detail})
	}
	for _, text := range []struct {
		name  string
		value *string
		most  int
		lines bool
	}{{"title", p.Title, maxTitle, false}, {"text", p.Text, maxText, true}, {"unsubscribe_label", p.UnsubscribeLabel, maxLabel, false}} {
		switch v := text.value; {
		case v == nil:
		case utf8.RuneCountInString(*v) > text.most:
			fault(text.name, "too_long", "must have at most "+strconv.Itoa(text.most)+" characters")
		case strings.ContainsFunc(*v, func(r rune) bool { return unicode.IsControl(r) && (r != '\n' || !text.lines) }):
			fault(text.name, "bad_format", "must have no control characters")
		}
	}
	for name, v := range map[string]*string{"color": p.Color, "background": p.Background} {
		if v != nil && *v != "" && !colors.MatchString(*v) {
			fault(name, "bad_format", "must be a colour as #rrggbb in lower case, such as #1f5fbf")
		}
	}
	if p.Language != nil && *p.Language != "" && !slices.Contains(Languages, *p.Language) {
		fault("language", "invalid_choice", "must be one of "+strings.Join(Languages, ", "))
	}
	if len(faults) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid", Fields: faults}
	}
	return nil
}

// Luminance is the relative luminance (WCAG 2.2) of a colour as #rrggbb, from 0 to 1.
func Luminance(color string) (sum float64) {
	rgb, _ := strconv.ParseUint(strings.TrimPrefix(color, "#"), 16, 32)
	for i, weight := range []float64{0.0722, 0.7152, 0.2126} {
		c := float64(rgb>>(8*i)&0xff) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

// Patch changes a workspace; a nil field stays unchanged.
type Patch struct {
	Page             PagePatch
	TrackingURL      *string
	LockFor, SealFor *time.Duration
	Strategy         *string
}

// Limits of the times of keys.
const (
	MostLock = time.Hour
	MostSeal = 72 * time.Hour
)

func (p Patch) checkKeys() error {
	for _, t := range []struct {
		name  string
		value *time.Duration
		most  time.Duration
	}{{"lock_for", p.LockFor, MostLock}, {"seal_for", p.SealFor, MostSeal}} {
		if t.value != nil && (*t.value < time.Second || *t.value > t.most) {
			return lemma.Fault("/keys/"+t.name, "out_of_range", "must be from %s to %s", time.Second, t.most)
		}
	}
	if p.Strategy != nil && !slices.Contains(strategies, *p.Strategy) {
		return lemma.Fault("/keys/strategy", "invalid_choice", "must be one of %s", strings.Join(strategies, ", "))
	}
	return nil
}

// strategies are those of direct notifications.
var strategies = []string{"at_most_once", "at_least_once"}

// maxTrackingURL is in bytes: the token of a link has up to 4,096.
const maxTrackingURL = 200

func (p Patch) check() error {
	err := errors.Join(p.Page.check(), p.checkKeys())
	if p.TrackingURL == nil || *p.TrackingURL == "" || err != nil {
		return err
	}
	to, err := url.Parse(*p.TrackingURL)
	if err != nil || to.Scheme != "https" || to.Hostname() == "" || *p.TrackingURL != "https://"+to.Host ||
		len(*p.TrackingURL) > maxTrackingURL {
		return lemma.Fault("/tracking_url", "bad_format", "must be https:// and a host, such as https://go.shop.example")
	}
	if strings.ContainsFunc(to.Host, func(r rune) bool { return r > unicode.MaxASCII }) {
		return lemma.Fault("/tracking_url", "bad_format", "must have a host in ASCII, as browsers send it: xn--...")
	}
	return nil
}

// Update changes a workspace. ifMatch, if not nil, must be its version.
func (w *Workspaces) Update(ctx context.Context, id uuid.UUID, ifMatch *int, patch Patch) (Workspace, error) {
	if err := patch.check(); err != nil {
		return Workspace{}, err
	}
	p := patch.Page
	var changed Workspace
	err := fence.Transact(ctx, w.pool, func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, `
		update workspaces set version = version + 1, tracking_url = coalesce($9, tracking_url),
			lock_for = coalesce($10, lock_for), seal_for = coalesce($11, seal_for), strategy = coalesce($12, strategy),
			page = page || jsonb_strip_nulls(
			jsonb_build_object(
			'title', $3::text, 'text', $4::text, 'unsubscribe_label', $5::text, 'color', $6::text, 'background', $7::text,
			'language', $8::text))
		where id = $1 and ($2::int is null or version = $2)
		returning `+columns, id, ifMatch, p.Title, p.Text, p.UnsubscribeLabel, p.Color, p.Background, p.Language, patch.TrackingURL,
			patch.LockFor, patch.SealFor, patch.Strategy)
		if changed, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Workspace]); err != nil || patch.TrackingURL == nil {
			return err
		}
		return claimHost(ctx, tx, id, changed.TrackingURL)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := w.Get(ctx, id); err != nil {
			return Workspace{}, err
		}
		return Workspace{}, lemma.Changed("workspace")
	}
	return changed, saving.Explain(err, "update workspace")
}
