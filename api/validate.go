package api

import (
	"errors"
	"reflect"
	"strings"

	"github.com/go-playground/validator/v10"

	"lemma"
	"lemma/api/strict"
	"lemma/mail"
)

// rules are checks that a schema cannot express, by the tags of request structs. A rule
// is a code and a detail.
var rules = map[string]mail.Rule{
	"address":      mail.AddressRule,
	"single_line":  mail.SingleLineRule,
	"zone":         {Code: "invalid_zone", Detail: "must be an IANA time zone such as Europe/Berlin", Holds: isZone},
	"header_name":  mail.HeaderNameRule,
	"not_reserved": mail.NotReservedRule,
}

var tags = newTags()

func newTags() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	for name, rule := range rules {
		err := v.RegisterValidation(name, func(f validator.FieldLevel) bool { return rule.Holds(f.Field().String()) })
		if err != nil {
			panic("rule " + name + ": " + err.Error())
		}
	}
	v.RegisterTagNameFunc(func(f reflect.StructField) string {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		return name
	})
	// The value of an optional field is checked if it is present.
	v.RegisterCustomTypeFunc(func(f reflect.Value) any { return f.Interface().(optional[string]).Value }, optional[string]{})
	return v
}

// validateTags returns all faults by the tags of a struct.
func validateTags(in any) error {
	err := tags.Struct(in)
	var broken validator.ValidationErrors
	if !errors.As(err, &broken) {
		return lemma.Wrap(err, "validate request")
	}
	var fields []lemma.Field
	for _, f := range broken {
		fields = append(fields, lemma.Field{Pointer: namespacePointer(f.Namespace()), Code: rules[f.Tag()].Code, Detail: rules[f.Tag()].Detail})
	}
	return strict.Invalid(fields)
}

// namespacePointer converts the validator's newCampaign.headers[X-Name] to a pointer. The
// name in brackets is the caller's and may contain dots.
func namespacePointer(namespace string) string {
	_, path, _ := strings.Cut(namespace, ".")
	head, key, bracket := strings.Cut(path, "[")
	pointer := "/" + strings.ReplaceAll(head, ".", "/")
	if bracket {
		pointer += lemma.Pointer(strings.TrimSuffix(key, "]"))
	}
	return pointer
}

func isZone(text string) bool {
	_, err := lemma.Zone(text)
	return err == nil
}
