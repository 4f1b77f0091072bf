package secrets_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"lemma/secrets"
)

func box(t *testing.T, keys string) *secrets.Box {
	t.Helper()
	b, err := secrets.ParseKeys(keys)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatWasSealedOpens(t *testing.T) {
	b := box(t, secrets.NewKey())
	for _, plain := range []string{"", "x", strings.Repeat("long ", 10_000)} {
		sealed := b.Seal([]byte(plain), "data_sources", "ws", "id")
		// A byte of plain text is found among random ones by chance.
		if len(plain) > 16 && bytes.Contains(sealed, []byte(plain)) {
			t.Errorf("the plain text is in the sealed one")
		}
		got, err := b.Open(sealed, "data_sources", "ws", "id")
		if err != nil || string(got) != plain {
			t.Errorf("opened %.20q, %v", got, err)
		}
	}
	if bytes.Equal(b.Seal([]byte("x")), b.Seal([]byte("x"))) {
		t.Error("the same text sealed twice gives the same result")
	}
}

func TestSealedTextBelongsToItsRow(t *testing.T) {
	b := box(t, secrets.NewKey())
	sealed := b.Seal([]byte("dsn of a"), "ab", "c")
	for name, aad := range map[string][]string{
		"another row":          {"ab", "d"},
		"parts cut elsewhere":  {"a", "bc"},
		"parts run together":   {"abc"},
		"one part more":        {"ab", "c", ""},
		"no place":             nil,
		"parts in other order": {"c", "ab"},
	} {
		if _, err := b.Open(sealed, aad...); !errors.Is(err, secrets.ErrSealed) {
			t.Errorf("%s: opened, %v", name, err)
		}
	}
}

func TestChangedTextDoesNotOpen(t *testing.T) {
	b := box(t, secrets.NewKey())
	sealed := b.Seal([]byte("dsn"), "row")
	for i := range sealed {
		forged := bytes.Clone(sealed)
		forged[i] ^= 1
		if _, err := b.Open(forged, "row"); !errors.Is(err, secrets.ErrSealed) {
			t.Errorf("byte %d flipped: %v", i, err)
		}
		if _, err := b.Open(sealed[:i], "row"); !errors.Is(err, secrets.ErrSealed) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

func TestRotation(t *testing.T) {
	a, z := secrets.NewKey(), secrets.NewKey()
	before, during, after := box(t, "a:"+a), box(t, "z:"+z+", a:"+a), box(t, "z:"+z)
	old := before.Seal([]byte("dsn"), "row")

	if got, err := during.Open(old, "row"); err != nil || string(got) != "dsn" {
		t.Fatalf("both keys: %q, %v", got, err)
	}
	fresh, changed, err := during.Reseal(old, "row")
	if err != nil || !changed {
		t.Fatalf("the old text was not sealed anew: %v", err)
	}
	if again, changed, err := during.Reseal(fresh, "row"); err != nil || changed || !bytes.Equal(again, fresh) {
		t.Errorf("the new text was sealed anew: %v", err)
	}
	if _, _, err := during.Reseal(old, "another row"); !errors.Is(err, secrets.ErrSealed) {
		t.Errorf("resealed for another row: %v", err)
	}
	if got, err := after.Open(fresh, "row"); err != nil || string(got) != "dsn" {
		t.Errorf("the new key alone: %q, %v", got, err)
	}
	if _, err := after.Open(old, "row"); !errors.Is(err, secrets.ErrSealed) {
		t.Errorf("a key that is gone opened: %v", err)
	}
}

// A key opens what it has sealed, whatever its id was: none, or the id that
// another key has now.
func TestKeysAreNotKnownByTheirIDs(t *testing.T) {
	a, z := secrets.NewKey(), secrets.NewKey()
	for sealing, opening := range map[string]string{
		a:        "new:" + z + ",old:" + a, // the old key gets an id only now
		"1:" + a: z + "," + a,
		"k:" + a: "k:" + z + ",old:" + a, // another key has the id now
		"x:" + a: a,
		a + " ":  " " + z + " , " + a + " ",
	} {
		sealed := box(t, sealing).Seal([]byte("dsn"), "row")
		during := box(t, opening)
		if got, err := during.Open(sealed, "row"); err != nil || string(got) != "dsn" {
			t.Errorf("sealed by %.8s, opened by %.8s: %v", sealing, opening, err)
		}
		fresh, changed, err := during.Reseal(sealed, "row")
		if err != nil || !changed {
			t.Errorf("sealed by %.8s, resealed by %.8s: %v, %v", sealing, opening, changed, err)
			continue
		}
		first, _, _ := strings.Cut(opening, ",")
		if got, err := box(t, first).Open(fresh, "row"); err != nil || string(got) != "dsn" {
			t.Errorf("%.8s alone does not open what was resealed: %v", first, err)
		}
	}
}

func TestSameIDAnotherKey(t *testing.T) {
	sealed := box(t, "a:"+secrets.NewKey()).Seal([]byte("dsn"), "row")
	if _, err := box(t, "a:"+secrets.NewKey()).Open(sealed, "row"); !errors.Is(err, secrets.ErrSealed) {
		t.Errorf("opened with another key: %v", err)
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	good := secrets.NewKey()
	canary := base64.StdEncoding.EncodeToString([]byte("sixteen bytes ok"))
	for name, keys := range map[string]string{
		"no key":      "",
		"too short":   "a:" + canary,
		"not base64":  "a:" + good[:20] + "!!",
		"no id":       ":" + good,
		"id twice":    "a:" + good + ",a:" + good,
		"long id":     strings.Repeat("a", 65) + ":" + good,
		"comma ahead": "," + good,
		"key twice":   good + "," + good,
	} {
		_, err := secrets.ParseKeys(keys)
		if err == nil {
			t.Errorf("%s: taken", name)
			continue
		}
		if strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), good[:20]) {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
	if _, err := secrets.New(map[string][]byte{"a": make([]byte, 32)}, "b"); err == nil {
		t.Error("a current key that is not there was taken")
	}
}

func TestKeysAreNeverPrinted(t *testing.T) {
	raw := []byte("canary-canary-canary-canary-key!")
	b, err := secrets.New(map[string][]byte{"k": raw}, "k")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", b)
		fmt.Fprintf(&out, verb+"\n", struct{ Box *secrets.Box }{b})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("box", "box", b)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("box", "box", b)
	if want := strings.Count(out.String(), "secrets.Box(redacted)"); want != 16 {
		t.Errorf("redacted %d times of 16:\n%s", want, out.String())
	}
	for _, form := range []string{string(raw), fmt.Sprintf("%x", raw), fmt.Sprintf("%d", raw), base64.StdEncoding.EncodeToString(raw)} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the key was printed: %s", out.String())
		}
	}
}

func ExampleBox() {
	box, _ := secrets.ParseKeys("2026-11:" + secrets.NewKey())
	sealed := box.Seal([]byte("postgres://shop"), "data_sources", "workspace", "id")
	plain, _ := box.Open(sealed, "data_sources", "workspace", "id")
	_, err := box.Open(sealed, "data_sources", "workspace", "another id")
	fmt.Printf("%s\n%v\n", plain, err)
	// Output:
	// postgres://shop
	// sealed text does not open
}
