package message

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/osteele/liquid/parser"
)

func TestPlainText(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"<p>Hello {{ name }},</p><p>your <b>{{ id }}</b> is here.<br>Thanks<br/>You</p>": "Hello {{ name }},\n\n" +
			"your {{ id }} is here.\nThanks\nYou",
		"<h1>Hi</h1>\n<p>One</p>\n<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n<p>After</p>":         "Hi\n\nOne\n\n - a\n - b\n\nAfter",
		"<ul class=x><li style='a>b'><p>a</p></li><li><div>b</div></li></ul>c":               "- a\n\n - b\nc",
		"<ol><li>a<ul><li>b</li></ul></li></ol>":                                             "- a\n - b",
		`<p style="x">a</p><p style="y">b</p><br><br><br><p></p>c`:                           "a\n\nb\n\nc",
		"<table><tr><td>a</td><td>b</td></tr><tr><th>c</th></tr></table>d":                   "a b\nc\nd",
		"<div>a</div><div>b</div>c":                                                          "a\nb\nc",
		`<a href="https://x.example/?a=1&amp;b={{ id }}">To <i>it</i></a>, <a href=#>b</a>`:  "To it <https://x.example/?a=1&b={{ id }}>, b <#>",
		`<a href="u"><div>a</div></a><a href="v"><img></a>`:                                  "a <u>\n<v>",
		`<a name=x>a</a> <a href=" JavaScript:x()">b</a> <a href="u">c<a href="v"> d`:        "a b c <u> d <v>",
		"{% if a < b %}x{% else %}<!-- {{ c }} -->y{% endif %}":                              "{% if a < b %}x{% else %}y{% endif %}",
		`<p class="{% if a %}b{% endif %}">x<{{ b }}></p>`:                                   "x<{{ b }}>",
		"<textarea>{{ a }}</textarea>":                                                       "{{ a }}",
		"&copy;&nbsp;&#8364;5 &lt;3 &unknown; AT&T 1 < 2 > 3":                                "©\u00a0€5 <3 &unknown; AT&T 1 < 2 > 3",
		"<head><title>t</title><style>s</style><body>a<script>if (a<b) {}</script> b":        "a b",
		"<html><head><meta><p>h</p></head>a<style/>b</style>c<template><p>d</p></template>e": "ace",
		"<!--[if mso]>a<![endif]--><![if !mso]>b<![endif]><!-- open":                         "b",
		" \n a \t\r\n b\u2028\u200bc  ":                                                      "a b c",
		"<p>\n</p> ":                                                                         "",
	} {
		if got := textOf(source); got != want {
			t.Errorf("%q\ngives %q\nwant  %q", source, got, want)
		}
	}
}

// Each source of the allowed size takes a fraction of a second.
func TestPlainTextTakesLinearTime(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{
		">", "<", "<>", "</", "<a", "<a ", "a ", "&", "&#", "&#x", "&amp;", "&amp", "<!", "<!-", "<!--", "-->", "<!-->", "<!-- -->",
		"<?", "<![CDATA[", "]]>",
		"<a href=x>", "<a href='", "</a>", "<a href=x>y</a>", "<a href={{x}}>", "<a b=c ", "a=", "' \"", "<li>", "<ul><li>x", "<br>",
		"<p>", "</p>", "<div>", "<td>",
		"<script>", "</script>", "<script><!--", "<style>", "<title>", "<textarea>", "<head>", "<body>", "<template>", "<plaintext>",
		"<xmp>", "<table><tr><td>",
		" ", "\n", "\n \n", "\r", "\u200b", "\u00a0", "\x01", "\ufffd", "\ue0001\ue001", "{", "{{", "{%", "{{-", "{{x}}", "{{x}}>",
		"{%x%}<", "{{ \"", "{% raw %}",
		"{% raw %}{% endraw %}", "{% comment %}", "}}", "%}", "é", "\U0001f600",
	} {
		for _, before := range []string{"", "a ", "<a href='"} {
			source := before + strings.Repeat(unit, (MaxSource-len(before))/len(unit))
			start := time.Now()
			made := textOf(source)
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("%q and many %q take %s", before, unit, took)
			}
			if len(made) > 2*len(source) {
				t.Errorf("%q and many %q make %d bytes", before, unit, len(made))
			}
		}
	}
}

// A source beyond the limit is not converted at all.
func TestAnInvalidSourceIsNotConverted(t *testing.T) {
	t.Parallel()
	for _, source := range []string{strings.Repeat("a", MaxSource+1), "a\xff0\xff{{ b }}"} {
		if c, made := complete(Content{HTML: source}); c.Text != "" || !made {
			t.Errorf("%.20q gives %.20q", source, c.Text)
		}
		if _, err := Check(uuid.Nil, Content{Subject: "s", HTML: source}); err == nil {
			t.Errorf("%.20q is accepted", source)
		}
	}
}

// FuzzPlainText checks that no source repeats an element of Liquid: a text that could
// name placeholders would multiply them.
func FuzzPlainText(f *testing.F) {
	for _, s := range []string{
		"<a href='{{ a }}'>{% b %}</a>", "&#xE000;0&#xE001;{{ a }}", "\ue0000\ue001{{ a }}", "&#255;0&#255;{{ a }}", "<{{ a }}>&#0;0&#0;",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		c, _ := complete(Content{HTML: source})
		written := map[string]int{}
		for _, token := range parser.Scan(source, parser.SourceLoc{}, nil) {
			if token.Type != parser.TextTokenType {
				written[token.Source]++
			}
		}
		for element, n := range written {
			if element != "" && len(element) > 8 && strings.Count(c.Text, element) > strings.Count(source, element) {
				t.Errorf("%q has %q more than %d times", c.Text, element, n)
			}
		}
		if strings.Contains(c.Text, quote) || len(c.Text) > 2*len(source) {
			t.Errorf("%q gives %q", source, c.Text)
		}
	})
}
