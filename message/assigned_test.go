package message

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// Liquid reverses the part of a list that limit and offset leave, and the engine the list before.
func TestReversedPartsOfLoops(t *testing.T) {
	t.Parallel()
	for source, valid := range map[string]bool{
		"{% for x in l reversed limit: 2 %}{{ x }}{% endfor %}": false, "{% for x in l limit: 2 reversed %}{{ x }}{% endfor %}": false,
		"{% for x in l offset: 1 reversed %}{{ x }}{% endfor %}": false, "{% for x in l reversed %}{{ x }}{% endfor %}": true,
		"{% for x in l limit: 2 offset: 1 %}{{ x }}{% endfor %}": true,
	} {
		if _, err := Check(uuid.Nil, Content{Subject: "s", Text: source}); (err == nil) != valid {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// A name that is assigned in some cases only is no variable of the template, and would be empty in the
// others although a column has it.
func TestNamesThatAreAssignedInSomeCases(t *testing.T) {
	t.Parallel()
	const fault = "assigned in some cases only"
	for source, refused := range map[string]bool{
		"{% if a %}{% assign n = 'x' %}{% endif %}{{ n }}":                                                          true,
		"{% if a %}{% assign n = 'x' %}{% else %}{{ n }}{% endif %}":                                                true,
		"{% if a %}{% assign n = 'x' %}{{ n }}{% endif %}":                                                          false,
		"{% if a %}{% assign n = 'x' %}{% else %}{% assign n = 'y' %}{% endif %}{{ n }}":                            false,
		"{% if a %}{% assign n = 1 %}{% elsif b %}{% assign n = 2 %}{% endif %}{{ n }}":                             true,
		"{% if a %}{% assign n = 1 %}{% elsif b %}x{% else %}{% assign n = 2 %}{% endif %}{{ n }}":                  true,
		"{% if a %}{% assign n = 1 %}{% elsif b %}{% assign n = 3 %}{% else %}{% assign n = 2 %}{% endif %}{{ n }}": false,
		"{% case a %}{% when 1 %}{% assign n = 'x' %}{% endcase %}{{ n }}":                                          true,
		"{% case a %} {% when 1 %}{% assign n = 'x' %}{% else %}{% assign n = 'y' %}{% endcase %}{{ n }}":           false,
		"{% for i in l %}{% assign n = i %}{% endfor %}{{ n }}":                                                     true,
		"{% for i in l %}{% assign n = i %}{{ n }}{% endfor %}":                                                     false,
		"{% for i in l %}{% assign n = i %}{% else %}{% assign n = 0 %}{% endfor %}{{ n }}":                         true,
		"{% unless a %}{% assign unsubscribe_url = 'x' %}{% endunless %}{{ unsubscribe_url }}":                      true,
		"{% if a %}{% if b %}{% assign n = 1 %}{% endif %}{{ n }}{% endif %}":                                       true,
		"{% if a %}{% if b %}{% assign n = 1 %}{% else %}{% assign n = 2 %}{% endif %}{{ n }}{% endif %}":           false,
		"{% if a %}{% if b %}{% assign n = 1 %}{% else %}{% assign n = 2 %}{% endif %}{% endif %}{{ n }}":           true,
		"{% assign n = n %}{% if a %}{% assign n = 'x' %}{% endif %}{{ n }}":                                        false,
		"{% assign n = '' %}{% for i in l %}{% assign n = i %}{% endfor %}{{ n }}":                                  false,
		"{% if n == '' %}{% assign n = 'friend' %}{% endif %}{{ n }}":                                               false,
	} {
		_, err := Check(uuid.Nil, Content{Subject: "s", Text: source})
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", source, err)
		}
	}
	c, err := Compile(uuid.Nil, Content{Subject: "s", Text: "{% assign n = n %}{% if vip %}{% assign n = 'VIP' %}{% endif %}Hi {{ n }}"})
	if err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{`{"n":"Ann","vip":false}`: "Hi Ann", `{"n":"Ann","vip":true}`: "Hi VIP"} {
		if made, err := c.Render(data); err != nil || made.Text != want {
			t.Errorf("%s: %q, %v", data, made.Text, err)
		}
	}
}
