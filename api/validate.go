package api

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"

	"lemma"
)

// rules are what a schema cannot say: tags of request structs, checked on top
// of it. A rule is a word and the sentence for whoever breaks it.
var rules = map[string]struct {
	holds  func(text string) bool
	detail string
}{
	"address":      {isAddress, "this is not an email address"},
	"single_line":  {isSingleLine, "must be one line, without line breaks or NUL"},
	"iana_zone":    {isZone, "must be an IANA time zone such as Europe/Berlin"},
	"header_name":  {isHeaderName, "a header's name has letters, digits and hyphens, and no white space or colon"},
	"not_reserved": {isFree, "Lemma writes this header itself"},
}

var tags = newTags()

func newTags() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	for name, rule := range rules {
		err := v.RegisterValidation(name, func(f validator.FieldLevel) bool { return rule.holds(f.Field().String()) })
		if err != nil {
			panic("rule " + name + ": " + err.Error())
		}
	}
	v.RegisterTagNameFunc(func(f reflect.StructField) string {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		return name
	})
	// A patch's field is checked by the value in it, and not at all when absent.
	v.RegisterCustomTypeFunc(func(f reflect.Value) any { return f.Interface().(optional[string]).Value }, optional[string]{})
	return v
}

// validateTags names every fault that the tags find.
func validateTags(in any) error {
	err := tags.Struct(in)
	var broken validator.ValidationErrors
	if !errors.As(err, &broken) {
		if err != nil {
			return fmt.Errorf("validate request: %w", err)
		}
		return nil
	}
	var fields []lemma.Field
	for _, f := range broken {
		fields = append(fields, lemma.Field{Pointer: namespacePointer(f.Namespace()), Code: f.Tag(), Detail: rules[f.Tag()].detail})
	}
	return invalid(fields)
}

// namespacePointer turns the validator's newCampaign.headers[X-Name] into a
// pointer. What is in brackets is the caller's and may hold dots.
func namespacePointer(namespace string) string {
	_, path, _ := strings.Cut(namespace, ".")
	head, key, bracket := strings.Cut(path, "[")
	pointer := "/" + strings.ReplaceAll(head, ".", "/")
	if bracket {
		pointer += "/" + pointerToken(strings.TrimSuffix(key, "]"))
	}
	return pointer
}

func isAddress(text string) bool {
	address, _, ok := lemma.CanonicalEmail(text)
	return ok && strings.TrimSpace(text) == text && address != ""
}

func isSingleLine(text string) bool { return !strings.ContainsAny(text, "\r\n\x00") }

func isZone(text string) bool {
	_, err := time.LoadLocation(text)
	return err == nil && text != "Local"
}

// isHeaderName wants an RFC 5322 field name (ftext, 3.6.8) that is a token of
// RFC 9110 too: what odd servers and clients agree on.
func isHeaderName(text string) bool {
	if text == "" || len(text) > 76 {
		return false
	}
	for _, c := range []byte(text) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}

// reserved headers are those that Lemma or the mail server writes: a second one
// would make the mail say two things.
var reserved = []string{
	"from", "sender", "reply-to", "to", "cc", "bcc", "subject", "date", "message-id", "in-reply-to", "references", "return-path", "received",
	"dkim-signature", "authentication-results", "mime-version", "content-type", "content-transfer-encoding", "content-disposition", "content-id",
	"content-description", "delivered-to", "apparently-to", "envelope-to", "resent-from", "resent-sender", "resent-to", "resent-cc", "resent-bcc",
	"resent-date", "resent-message-id", "domainkey-signature", "arc-seal", "arc-message-signature", "arc-authentication-results",
}

func isFree(name string) bool { return !slices.Contains(reserved, strings.ToLower(name)) }
