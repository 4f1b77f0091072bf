package api

import (
	"context"
	"strconv"
	"time"

	"lemma"
	"lemma/message"
)

type templateBody struct {
	ID        string        `json:"id"`
	Name      string        `json:"name"`
	Channel   lemma.Channel `json:"channel"`
	Version   int           `json:"version"`
	CreatedAt time.Time     `json:"created_at"`
	UpdatedAt time.Time     `json:"updated_at"`
	revision  int
}

func (b templateBody) etag() int        { return b.revision }
func (b templateBody) location() string { return "/v1/templates/" + b.ID }

func showTemplate(t message.Template) templateBody {
	return templateBody{ID: lemma.FormatID(lemma.PrefixTemplate, t.ID), Name: t.Name, Channel: t.Channel, Version: t.Version,
		CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(), revision: t.Revision}
}

type newTemplate struct {
	Name string `json:"name"`
	content
}

type templatePatch struct {
	Name string `json:"name"`
}

func (s *server) listTemplates(ctx context.Context, c *call, _ none) (list[templateBody], error) {
	found, next, err := s.Templates.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showTemplate)
}

func (s *server) createTemplate(ctx context.Context, c *call, in newTemplate) (templateBody, error) {
	made, err := s.Templates.Create(ctx, c.workspace(), message.NewTemplate{ID: c.newID, Name: in.Name, Content: in.message()})
	return showTemplate(made), err
}

func (s *server) getTemplate(ctx context.Context, c *call, _ none) (templateBody, error) {
	found, err := s.Templates.Get(ctx, c.workspace(), c.id)
	return showTemplate(found), err
}

func (s *server) updateTemplate(ctx context.Context, c *call, in templatePatch) (templateBody, error) {
	changed, err := s.Templates.Update(ctx, c.workspace(), c.id, c.ifMatch, in.Name)
	return showTemplate(changed), err
}

func (s *server) deleteTemplate(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.usedBy(ctx, c, s.Templates.Delete(ctx, c.workspace(), c.id))
}

type templateValidation struct {
	Variables []string `json:"variables"`
}

func (s *server) validateTemplate(_ context.Context, c *call, in content) (templateValidation, error) {
	variables, err := message.Check(c.workspace(), in.message())
	return templateValidation{each(variables, asIs)}, err
}

type versionBody struct {
	TemplateID string `json:"template_id"`
	Version    int    `json:"version"`
	content
	Variables []string  `json:"variables"`
	CreatedAt time.Time `json:"created_at"`
}

func (b versionBody) location() string {
	return "/v1/templates/" + b.TemplateID + "/versions/" + strconv.Itoa(b.Version)
}

func showVersion(v message.Version) versionBody {
	return versionBody{TemplateID: lemma.FormatID(lemma.PrefixTemplate, v.TemplateID), Version: v.Version, content: showContent(v.Content),
		Variables: each(v.Variables, asIs), CreatedAt: v.CreatedAt.UTC()}
}

func (s *server) listVersions(ctx context.Context, c *call, _ none) (list[versionBody], error) {
	found, next, err := s.Templates.Versions(ctx, c.workspace(), c.id, c.page())
	return listOf(found, next, err, showVersion)
}

// addedVersion has the ETag of the template with the version.
type addedVersion struct {
	versionBody
	revision int
}

func (b addedVersion) etag() int { return b.revision }

func (s *server) createVersion(ctx context.Context, c *call, in content) (addedVersion, error) {
	made, err := s.Templates.AddVersion(ctx, c.workspace(), c.id, c.ifMatch, in.message(), c.newID)
	return addedVersion{showVersion(made), made.Revision}, err
}

func (s *server) getVersion(ctx context.Context, c *call, _ none) (versionBody, error) {
	found, err := s.Templates.Version(ctx, c.workspace(), c.id, c.version)
	return showVersion(found), err
}
