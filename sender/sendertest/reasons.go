package sendertest

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Reasons are the reasons in the tables of package comments: the first files of a
// carrier's package and of package wire. Each row has at least three columns.
func Reasons(t testing.TB, files ...string) (all []string) {
	t.Helper()
	columns := regexp.MustCompile(`\s{2,}|\t`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		comment, _, _ := strings.Cut(string(source), "\npackage ")
		rows := 0
		for line := range strings.SplitSeq(comment, "\n") {
			if row := columns.Split(line, -1); len(row) > 3 {
				reason, _, _ := strings.Cut(row[len(row)-1], ";")
				all = append(all, reason)
				rows++
			}
		}
		if rows < 8 {
			t.Fatalf("the table in %s has only %d rows", file, rows)
		}
	}
	return all
}
