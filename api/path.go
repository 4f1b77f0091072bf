package api

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"lemma"
)

// resource is what the id in a path identifies.
type resource struct{ prefix, noun string }

// resources are the resources of the paths, by their first part after /v1.
var resources = map[string]resource{
	"api_keys":          {lemma.PrefixKey, "key"},
	"audiences":         {lemma.PrefixAudience, "audience"},
	"campaigns":         {lemma.PrefixCampaign, "campaign"},
	"data_sources":      {lemma.PrefixDataSource, "data source"},
	"enrollments":       {lemma.PrefixEnrollment, "enrollment"},
	"events":            {lemma.PrefixEvent, "event"},
	"events_out":        {lemma.PrefixEventOut, "event"},
	"exports":           {lemma.PrefixExport, "export"},
	"flows":             {lemma.PrefixFlow, "flow"},
	"iterations":        {lemma.PrefixIteration, "iteration"},
	"providers":         {lemma.PrefixProvider, "provider"},
	"suppressions":      {lemma.PrefixSuppression, "suppression"},
	"templates":         {lemma.PrefixTemplate, "template"},
	"topics":            {lemma.PrefixTopic, "topic"},
	"webhook_endpoints": {lemma.PrefixEndpoint, "webhook endpoint"},
}

// collection returns the first part of a path after /v1.
func collection(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	return first
}

// readPath reads the id and the version in the path. A text that is none is answered like
// an unknown one. The ids of notifications have two parts, see notificationID.
func (c *call) readPath() error {
	of, known := resources[collection(c.request.URL.Path)]
	id, version := chi.URLParam(c.request, "id"), chi.URLParam(c.request, "n")
	if id == "" || !known {
		return nil
	}
	if c.id, known = lemma.ParseID(of.prefix, id); !known {
		return lemma.Missing(of.noun)
	}
	if version != "" {
		n, err := strconv.ParseInt(version, 10, 32)
		if err != nil || n < 1 {
			return lemma.Missing(of.noun + " version")
		}
		c.version = int(n)
	}
	return nil
}

// readIfMatch reads the version in If-Match (RFC 9110, 13.1.1). A weak tag, and one that
// Lemma never returned, match nothing. Of several tags the highest counts: versions only
// grow, so a caller that has it cannot match with a lower one. Of two tags of one version,
// that of the flow allows more than that of a plan.
func (c *call) readIfMatch() error {
	list := strings.TrimSpace(strings.Join(c.request.Header.Values("If-Match"), ","))
	if list == "" || list == "*" {
		return nil
	}
	if !entityTags.MatchString(list) {
		return lemma.Fault("If-Match:", "bad_format", `must be an ETag as it was answered, such as "3" with its quotes`)
	}
	newest := -1
	for _, tag := range entityTag.FindAllString(list, -1) {
		parts := versionTag.FindStringSubmatch(tag)
		if parts == nil || parts[2] != "" && !c.takesPlans() {
			continue
		}
		version, err := strconv.Atoi(parts[1])
		if err == nil && (version > newest || version == newest && parts[2] == "") {
			newest, c.planned = version, parts[2]
		}
	}
	if newest < 0 {
		return &lemma.Error{Kind: lemma.Stale, Message: "If-Match is not the ETag of any version of this"}
	}
	c.ifMatch = &newest
	return nil
}

// takesPlans reports whether the ETag of a plan is one of the thing in the path: of a flow,
// and not of one of its versions.
func (c *call) takesPlans() bool {
	return collection(c.request.URL.Path) == "flows" && (c.version == 0 || c.request.Method == http.MethodPost)
}

// entityTags is a list of entity-tags, entityTag one of them (RFC 9110, 8.8.3), and
// versionTag one that Lemma answers: the version, and of a plan the digest.
var (
	versionTag = regexp.MustCompile(`^"([0-9]+)(?:-([0-9a-f]{16}))?"$`)
	entityTag  = regexp.MustCompile(`(?:W/)?"[\x21\x23-\x7e\x80-\x{10ffff}]*"`)
	entityTags = regexp.MustCompile(`^` + entityTag.String() + `(?:[ \t]*,[ \t]*(?:` + entityTag.String() + `)?)*$`)
)
