package unsubscribe

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"lemma"
	"lemma/workspaces"
)

func TestEveryLanguageHasAllWords(t *testing.T) {
	t.Parallel()
	if len(wordsOf) != len(workspaces.Languages) {
		t.Errorf("%d languages have words, and a workspace may have %d", len(wordsOf), len(workspaces.Languages))
	}
	for _, language := range workspaces.Languages {
		w := reflect.ValueOf(wordsOf[language])
		for i := range w.NumField() {
			if w.Field(i).String() == "" {
				t.Errorf("%s has no %s", language, w.Type().Field(i).Name)
			}
		}
		if part := fmt.Sprintf(wordsOf[language].Part, 201, 202, 303); strings.Contains(part, "%!") {
			t.Errorf("%s: %s", language, part)
		}
	}
}

// Texts have at least the contrast of WCAG 2.2, level AA, with each colour.
func TestContrast(t *testing.T) {
	t.Parallel()
	for _, color := range []string{"#000000", "#ffffff", "#1f5fbf", "#808080", "#777777", "#ff0000", "#00ff00", "#ffff00"} {
		a, b := workspaces.Luminance(color), workspaces.Luminance(textOn(color))
		if contrast := (max(a, b) + 0.05) / (min(a, b) + 0.05); contrast < 4.5 {
			t.Errorf("%s on %s has a contrast of %.2f", textOn(color), color, contrast)
		}
	}
}

func TestMaskedAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"ada@example.com": "a•••@example.com", "é@example.com": "é•••@example.com", "": ""} {
		if got := masked(lemma.Email, address); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if sms, push := masked(lemma.SMS, "+4930123456"), masked(lemma.Push, "token"); sms != "•••456" || push != "" {
		t.Errorf("%q, %q", sms, push)
	}
}
