package message

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/google/uuid"
)

var update = flag.Bool("update", false, "write the golden files anew, to be reviewed as a diff")

// TestDialect compares the dialect with testdata/dialect.txt: each case is a
// template, a line "with" its data, and the result as HTML and as text.
func TestDialect(t *testing.T) {
	t.Parallel()
	const file = "testdata/dialect.txt"
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for i, section := range strings.Split(string(want), "\n=== ") {
		if i == 0 {
			got.WriteString(section)
			continue
		}
		title, rest, _ := strings.Cut(section, "\n")
		source, rest, _ := strings.Cut(rest, "\n--- with ")
		payload, _, _ := strings.Cut(rest, "\n")
		got.WriteString("\n=== " + title + "\n" + source + "\n--- with " + payload + "\n" + outcome(source, payload))
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Error(diff)
	}
}

func outcome(source, payload string) string {
	made, err := Compile(uuid.Nil, Content{Subject: "s", HTML: source, Text: source})
	if err != nil {
		return "refused: " + err.Error() + "\n"
	}
	got, err := made.Render(payload)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if got.HTML == got.Text {
		return "both: " + got.HTML + "\n"
	}
	return "html: " + got.HTML + "\ntext: " + got.Text + "\n"
}

// TestTextFromHTML compares the text of testdata/message.html with message.txt.
func TestTextFromHTML(t *testing.T) {
	t.Parallel()
	html, err := os.ReadFile("testdata/message.html")
	if err != nil {
		t.Fatal(err)
	}
	c, made := complete(Content{Subject: "s", HTML: string(html)})
	if _, err := Check(uuid.Nil, c); err != nil || !made {
		t.Fatal(err, made)
	}
	if *update {
		if err := os.WriteFile("testdata/message.txt", []byte(c.Text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("testdata/message.txt")
	if diff := cmp.Diff(string(want), c.Text+"\n"); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
