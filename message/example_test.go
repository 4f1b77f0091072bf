package message_test

import (
	"errors"
	"fmt"

	"lemma"
	"lemma/message"

	"github.com/google/uuid"
)

func Example() {
	welcome, err := message.Compile(uuid.Nil, message.Content{
		Subject: `{{ name | default: "Friend" }}, {{ points }} points`,
		HTML:    `<p>Hello {{ name | default: "Friend" }},</p><p>you have {{ points }} points.</p>`,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(welcome.Variables())
	rendered, err := welcome.Render(`{"name": "Anna <3", "points": 420}`)
	if err != nil {
		panic(err)
	}
	fmt.Println(rendered.Subject)
	fmt.Println(rendered.HTML)
	fmt.Println(rendered.Text)
	// Output:
	// [name points]
	// Anna <3, 420 points
	// <p>Hello Anna &lt;3,</p><p>you have 420 points.</p>
	// Hello Anna <3,
	//
	// you have 420 points.
}

func ExampleCheck() {
	_, err := message.Check(uuid.Nil, message.Content{
		Subject: "News",
		HTML:    "<p>Hello {{ name | shout }},</p>\n<p>{{ points</p>",
	})
	if wrong, ok := errors.AsType[*lemma.Error](err); ok {
		for _, f := range wrong.Fields {
			fmt.Printf("%s, line %d, column %d: %s\n", f.Pointer, f.Line, f.Column, f.Detail)
		}
	}
	// Output:
	// /html, line 1, column 20: shout is not a filter
	// /html, line 2, column 4: {{ is not closed by }} on its line and would be sent as text
}
