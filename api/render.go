package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/message"
)

type renderRequest struct {
	Version    int             `json:"version"`
	AudienceID string          `json:"audience_id"`
	ProfileKey string          `json:"profile_key"`
	Data       json.RawMessage `json:"data"` // unparsed, so that a long number keeps its digits
}

type renderedTemplate struct {
	Version    int     `json:"version"`
	ProfileKey *string `json:"profile_key"`
	Address    *string `json:"address"`
	renderedContent
}

// renderTemplate renders the message for one row.
func (s *server) renderTemplate(ctx context.Context, c *call, in renderRequest) (renderedTemplate, error) {
	compiled, version, err := s.compiled(ctx, c, in.Version)
	if err != nil {
		return renderedTemplate{}, err
	}
	row, err := s.rowFor(ctx, c, in, compiled.Variables())
	if err != nil {
		return renderedTemplate{}, err
	}
	made, _, err := compiled.RenderMessage(row.Payload, message.SampleUnsubscribeURL(s.PublicURL()))
	if err != nil {
		return renderedTemplate{}, err
	}
	to := row.Addresses(nil, compiled.Channel())[0]
	return renderedTemplate{Version: version, ProfileKey: orNull(row.Key), Address: orNull(to.Text), renderedContent: showRendered(made)}, nil
}

// compiled returns a version of a template; 0 is the newest.
func (s *server) compiled(ctx context.Context, c *call, version int) (*message.Compiled, int, error) {
	now, err := s.Templates.Get(ctx, c.workspace(), c.id)
	if err != nil {
		return nil, 0, err
	}
	if version > now.Version {
		return nil, 0, lemma.Fault("/version", "unknown_version", "the template does not have this version")
	}
	if version == 0 {
		version = now.Version
	}
	compiled, err := s.Templates.Compiled(ctx, c.workspace(), c.id, version)
	return compiled, version, err
}

// rowFor returns the data to render with: that of the request, or a row of an audience,
// which needs the scope for personal data.
func (s *server) rowFor(ctx context.Context, c *call, in renderRequest, variables []string) (audience.Row, error) {
	hasData := len(in.Data) > 0
	switch {
	case hasData && (in.AudienceID != "" || in.ProfileKey != ""):
		return audience.Row{}, lemma.Fault("/data", "not_allowed", "give either audience_id or data")
	case hasData:
		return audience.Row{Payload: string(in.Data)}, nil
	case in.AudienceID == "":
		return audience.Row{}, lemma.Fault("/audience_id", "required", "give either audience_id or data")
	}
	if err := c.need("audiences:query"); err != nil {
		return audience.Row{}, err
	}
	id, err := s.audienceWith(ctx, c, in.AudienceID, variables)
	if err != nil {
		return audience.Row{}, err
	}
	return s.findRow(ctx, c, id, in.ProfileKey, variables)
}

// audienceWith returns an audience, which must have all the columns.
func (s *server) audienceWith(ctx context.Context, c *call, text string, columns []string) (uuid.UUID, error) {
	id, ok := lemma.ParseID(lemma.PrefixAudience, text)
	if !ok {
		return id, unknownID("/audience_id", "audience")
	}
	found, err := s.Audiences.Get(ctx, c.workspace(), id)
	if lemma.KindOf(err) == lemma.NotFound {
		return id, unknownID("/audience_id", "audience")
	}
	if err != nil {
		return id, err
	}
	missing := slices.DeleteFunc(slices.Clone(columns), func(name string) bool {
		return slices.ContainsFunc(found.Columns, func(c audience.Column) bool { return c.Name == name })
	})
	if len(missing) > 0 {
		return id, lemma.Fault("/audience_id", "unknown_variable",
			"the template uses %s, which the audience does not have", strings.Join(missing, ", "))
	}
	return id, nil
}

// errFound ends a stream at the wanted row.
var errFound = errors.New("found")

func (s *server) findRow(ctx context.Context, c *call, id uuid.UUID, key string, columns []string) (audience.Row, error) {
	var found audience.Row
	tooLarge := false
	_, err := s.Audiences.Stream(ctx, c.workspace(), id, columns, func(row audience.Row) error {
		if key != "" && row.Key != key {
			return nil
		}
		if row.TooLarge { // another may be none
			tooLarge = key != ""
			return nil
		}
		found = row
		return errFound
	})
	switch {
	case errors.Is(err, errFound):
		return found, nil
	case err != nil:
		return found, sourced(err)
	case tooLarge:
		return found, lemma.Fault("/profile_key", "row_too_large", "the row of the profile is longer than Lemma reads")
	case key != "":
		return found, lemma.Fault("/profile_key", "unknown_profile", "the audience has no profile with this key")
	}
	return found, lemma.Fault("/audience_id", "empty", "the audience has no rows now")
}
