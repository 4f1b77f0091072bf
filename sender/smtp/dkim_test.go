package smtp

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"
	"github.com/google/uuid"

	"lemma/processors/processorstest"
)

func mustSigner(t *testing.T, key string) *signer {
	t.Helper()
	s, err := newSigner("shop.example", "s1", key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// record is the DNS record of a key.
func record(t *testing.T, s *signer) string {
	t.Helper()
	if !s.rsa {
		return "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(s.key.Public().(ed25519.PublicKey))
	}
	raw, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return "v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(raw)
}

// A signature with a large key takes a worker several seconds, and cannot be
// interrupted.
func TestSizesOfKeys(t *testing.T) {
	t.Parallel()
	for bits, want := range map[int]error{1024: nil, 2048: nil, 4160: errKey} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for name, der := range map[string][]byte{"RSA PRIVATE KEY": x509.MarshalPKCS1PrivateKey(key), "PRIVATE KEY": pkcs8} {
			text := string(pem.EncodeToMemory(&pem.Block{Type: name, Bytes: der}))
			if _, err := newSigner("shop.example", "s1", text); !errors.Is(err, want) {
				t.Errorf("%s of %d bits: %v", name, bits, err)
			}
		}
	}
}

// Signatures with a key of three primes take seven times as long.
func TestKeysOfThreePrimes(t *testing.T) {
	t.Parallel()
	key := &rsa.PrivateKey{}
	for key.D == nil { // 65537 may divide a prime less one
		one, phi := big.NewInt(1), big.NewInt(1)
		key = &rsa.PrivateKey{PublicKey: rsa.PublicKey{E: 65537, N: big.NewInt(1)}}
		for range 3 {
			prime, err := rand.Prime(rand.Reader, 683)
			if err != nil {
				t.Fatal(err)
			}
			key.Primes = append(key.Primes, prime)
			key.N = new(big.Int).Mul(key.N, prime)
			phi.Mul(phi, new(big.Int).Sub(prime, one))
		}
		key.D = new(big.Int).ModInverse(big.NewInt(65537), phi)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	if _, err := newSigner("shop.example", "s1", text); !errors.Is(err, errKey) {
		t.Errorf("%v", err)
	}
}

// A key is not read if it has more bytes than one of the largest size: reading checks it, for long.
func TestKeysOfManyBytes(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var parts struct {
		Version   int
		Algorithm pkix.AlgorithmIdentifier
		Key       []byte
		More      []byte
	}
	_, _ = asn1.Unmarshal(der, &parts) // it has no fourth part
	for more, want := range map[int]error{mostDER - 100: nil, mostDER: errKey} {
		parts.More = make([]byte, more)
		der, err := asn1.Marshal(parts)
		if err != nil {
			t.Fatal(err)
		}
		text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		if _, err := newSigner("shop.example", "s1", text); !errors.Is(err, want) {
			t.Errorf("a key of %d bytes: %v", len(der), err)
		}
	}
}

// A signature waits for a processor, which one workspace leaves to others.
func TestSignaturesWaitForAProcessor(t *testing.T) {
	t.Parallel()
	s := mustSigner(t, testKeyRSA)
	s.of = uuid.New()
	if err := processorstest.Waits(t, signatures, s.of, func() error { _, err := s.seal([]byte("a: b\r\n")); return err }); err != nil {
		t.Error(err)
	}
}

// An independent verifier accepts the signatures, and notices when the one-click
// headers are changed (RFC 8058).
func TestDKIM(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"rsa": testKeyRSA, "ed25519": testKeyEd25519} {
		for _, body := range [][2]string{{"<p>Grüße</p>\n\n\n", "hi  there \t x\n\n"}, {"", ""}, {"<p>one part</p>", ""}, {"", "\n\n"}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := mustSigner(t, key)
				m := message(1)
				m.HTML, m.Text = body[0], body[1]
				m.Subject = "  many   blanks, and so long a subject that it must be folded over several lines, with Grüße in it"
				m.Headers = [][2]string{{"List-Unsubscribe", "<https://shop.example/u>"},
					{"List-Unsubscribe-Post", "List-Unsubscribe=One-Click"}, {"X-Other", "1"}}
				text := written(t, m, s)
				for line := range strings.Lines(text) {
					if len(line) > 80 && strings.HasPrefix(line, "DKIM") || strings.HasPrefix(line, ".") {
						t.Errorf("a line that a server may change: %q", line)
					}
				}
				options := &dkim.VerifyOptions{LookupTXT: func(string) ([]string, error) { return []string{record(t, s)}, nil }}
				if err := verify(text, options); err != nil {
					t.Errorf("%v\n%s", err, text)
				}
				for _, change := range [][2]string{{"shop.example/u", "evil.example/u"}, {"One-Click", "Two-Clicks"},
					{"From: \"Shop", "From: \"Chop"}} {
					if verify(strings.Replace(text, change[0], change[1], 1), options) == nil {
						t.Errorf("%s may be changed", change[0])
					}
				}
				for _, added := range []string{"Subject: Other", "From: <a@evil.example>", "Reply-To: <a@evil.example>",
					"List-Unsubscribe: <https://evil.example>", "Content-Type: text/plain"} {
					if verify(added+"\r\n"+text, options) == nil {
						t.Errorf("%s may be added", added)
					}
				}
				if err := verify("List-Id: <added.by.a.relay>\r\n"+text, options); err != nil {
					t.Errorf("a header of a list: %v", err)
				}
			})
		}
	}
}

func verify(text string, o *dkim.VerifyOptions) error {
	found, err := dkim.VerifyWithOptions(strings.NewReader(text), o)
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return errKey
	}
	return found[0].Err
}
