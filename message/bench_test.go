package message

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// smallMail is a typical personalised mail: about 1 kB of HTML, 300
// bytes of text.
var smallMail = Content{
	Subject: "{{ name | default: 'Friend' }}, your {{ points }} points",
	HTML: `<!DOCTYPE html><html><head><meta charset="utf-8"><title>News</title></head><body style="margin:0;font-family:sans-serif">
<table width="100%" cellpadding="0" cellspacing="0"><tr><td align="center"><h1>Hello {{ name | default: "Friend" | upcase }}</h1>
<p>` + strings.Repeat("The autumn sale has begun, and there is something for you. ", 8) + `</p>
{% if points %}<p>You have <b>{{ points }}</b> points in {{ city }}.</p>{% endif %}
<p><a href="https://shop.example/offers?id={{ id }}">To the shop</a></p><p>You get this because {{ email }} is on our list.</p>
</td></tr></table></body></html>`,
	Text: "Hello {{ name | default: 'Friend' }},\n\n" + strings.Repeat("The autumn sale has begun. ", 7) +
		"\n\nYou have {{ points }} points in {{ city }}.\nhttps://shop.example/offers?id={{ id }}\n",
}

const smallPayload = `{"city":"Köln","email":"anna@example.com","id":123456,"name":"Anna O'Neil","points":420}`

func BenchmarkRenderSmallMail(b *testing.B) {
	c := compiled(b, smallMail)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Render(smallPayload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRenderByEngine renders the same mail without the fast path.
func BenchmarkRenderByEngine(b *testing.B) {
	c := compiled(b, smallMail)
	for i := range c.parts {
		c.parts[i].fast = nil
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Render(smallPayload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRenderWithLoop renders a mail by the engine.
func BenchmarkRenderWithLoop(b *testing.B) {
	mail := smallMail
	mail.HTML += "{% for x in items %}<li>{{ x.name }}: {{ x.price }}</li>{% endfor %}"
	c := compiled(b, mail)
	payload := smallPayload[:len(smallPayload)-1] + `,"items":[{"name":"Tea","price":3.5},{"name":"Cup","price":9}]}`
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Render(payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadPayload(b *testing.B) {
	names := []string{"city", "email", "id", "name", "points"}
	values := make([]value, len(names))
	b.ReportAllocs()
	for b.Loop() {
		if err := read(values, names, smallPayload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Check(uuid.Nil, smallMail); err != nil {
			b.Fatal(err)
		}
	}
}
