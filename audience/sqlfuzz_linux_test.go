package audience

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The functions below are denied and do not exist: a
// source that parses a call of one reports that the function does not exist.
var canaries = map[string]string{Postgres: "dblink_canary", MySQL: "lib_mysqludf_canary"}

var pieces = []string{"'", "''", `\`, `\'`, `\\`, `"`, `""`, "`", "``", "e'", "E'", "n'", "x'", "b'", "$$", "$a$", "$a", "$", "1", "1e",
	"1$a$", "1.", "--", "-- ", "--\t", "#", "/*", "*/", "/**/",
	"\n", "\r", "\f", "\v", "\t", " ", " ", ",", "(", ")", "a", "@", "@a", "_utf8", "_latin1", " as a", ";", "ä", "\u00a0", "\u2028", "~",
	"+", "-", "*", "/", "?", ":", "::text", "[", "]", "!", "U&'", " uescape '!'"}

// TestLexerAgreesWithTheSources makes random texts of special tokens
// around a call. checkText must refuse every text in which the source
// parses the call. LEMMA_FUZZ_ROUNDS sets the number of texts.
func TestLexerAgreesWithTheSources(t *testing.T) {
	t.Parallel()
	rounds := 4000
	if n, err := strconv.Atoi(os.Getenv("LEMMA_FUZZ_ROUNDS")); err == nil {
		rounds = n
	}
	o := dev
	o.QueryTimeout = time.Duration(rounds)*time.Millisecond + 10*time.Minute
	for kind, b := range map[string]bundle{Postgres: setup(t, o), MySQL: first(mariadbShop(t, o))} {
		t.Run(kind, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			random := rand.New(rand.NewPCG(seed, 1))
			source, err := b.opened(t.Context(), b.Workspace, b.source)
			if err != nil {
				t.Fatal(err)
			}
			passed, found := 0, 0
			err = b.within(t.Context(), source, b.readSpan(), func(r *run) error {
				for range rounds {
					text := textAround(random, canaries[kind])
					refused := checkText(kind, text) != nil
					if !refused {
						passed++
					}
					if !callIsFound(t, r, kind, text) {
						continue
					}
					if found++; !refused {
						t.Errorf("seed %d: the source finds the call in %q", seed, text)
					}
				}
				return nil
			})
			if err != nil || passed < rounds/100 || found < rounds/100 {
				t.Errorf("%d texts: %d passed, in %d the source found the call; %v", rounds, passed, found, err)
			}
		})
	}
}

func first[A, B any](a A, _ B) A { return a }

// textAround is a select with a call somewhere, in a literal, a comment or plain.
func textAround(random *rand.Rand, canary string) string {
	some := func(most int) string {
		var b strings.Builder
		for range random.IntN(most + 1) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		return b.String()
	}
	openers := []string{"", "", "1, ", "'", "e'", `"`, "`", "$$", "$a$", "/*", "-- ", "#", "1$a$", "e'a'\n'"}
	//nolint:gocritic // a comment in MySQL begins with "-- "
	closers := map[string]string{"'": "'", "e'": "'", `"`: `"`, "`": "`", "$$": "$$", "$a$": "$a$", "/*": "*/", "-- ": "\n", "#": "\n",
		"1$a$": "$a$", "e'a'\n'": "'"}
	opener := openers[random.IntN(len(openers))]
	name := canary
	switch random.IntN(6) {
	case 0:
		name = strings.ToUpper(canary)
	case 1:
		name = "`" + canary + "`"
	case 2:
		name = `"` + canary + `"`
	}
	call := name + []string{"", " ", "\n", "\f", "\v", "\r", "/**/", "-- x\n", "-- x\r", "#x\n"}[random.IntN(10)] + "(1)"
	text := "select " + opener + some(3) + closers[opener]
	if random.IntN(2) == 0 {
		text += []string{",", "\n", "\r", " as a,", "\f,", ",'", ", e'"}[random.IntN(7)]
	}
	text += call
	if random.IntN(2) == 0 {
		text += some(3)
	}
	return text
}

// callIsFound makes the source parse the text alone.
func callIsFound(t *testing.T, r *run, kind, text string) bool {
	t.Helper()
	if strings.ContainsRune(text, 0) {
		return false
	}
	var message string
	switch s := r.session.(type) {
	case *pgSession:
		s.meter.Progress()
		if _, err := s.query(r.ctx, "savepoint s"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.conn.Prepare(r.ctx, "", text, nil); err != nil {
			message = err.Error()
		}
		if _, err := s.query(r.ctx, "rollback to s"); err != nil {
			t.Fatal(err)
		}
	case *mysqlSession:
		statement, _, err := s.prepare(r.ctx, text)
		if err != nil {
			message = err.Error()
		} else {
			statement.Close()
		}
	}
	message = strings.ToLower(message)
	return strings.Contains(message, "function "+canaries[kind]+"(") || // does not exist
		strings.Contains(message, "shop."+canaries[kind]+"'") // may not be executed, or does not exist
}
