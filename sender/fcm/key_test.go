package fcm

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"

	"github.com/google/uuid"

	"lemma/processors/processorstest"
)

// The time of a signature grows with the cube of the size of a key. These are made of Mersenne
// primes, which need no search.
func TestSizesOfKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		exponents []uint
		want      bool
	}{{[]uint{607, 1279}, false}, {[]uint{1279, 2203}, true}, {[]uint{607, 3217}, true}, {[]uint{2203, 2281}, false},
		{[]uint{4253, 4423}, false}, {[]uint{521, 607, 1279}, false}} {
		key := &rsa.PrivateKey{PublicKey: rsa.PublicKey{E: 65537, N: big.NewInt(1)}}
		one, phi := big.NewInt(1), big.NewInt(1)
		for _, exponent := range c.exponents {
			prime := mersenne(exponent)
			key.Primes = append(key.Primes, prime)
			key.N = new(big.Int).Mul(key.N, prime)
			phi.Mul(phi, new(big.Int).Sub(prime, one))
		}
		key.D = new(big.Int).ModInverse(big.NewInt(65537), phi)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if got := readKey(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))) != nil; got != c.want {
			t.Errorf("%d bits: %v, want %v", key.N.BitLen(), got, c.want)
		}
	}
}

// The server decides how long a token lasts, and so how often one is signed for. One workspace leaves a
// processor to others.
func TestSignaturesWaitForAProcessor(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	all := &tokens{account: serviceAccount{key: key, tokenURI: &url.URL{}}, workspace: uuid.New()}
	if err := processorstest.Waits(t, signatures, all.workspace, func() error { _, err := all.sign(); return err }); err != nil {
		t.Error(err)
	}
}

func mersenne(n uint) *big.Int {
	p := new(big.Int).Lsh(big.NewInt(1), n)
	return p.Sub(p, big.NewInt(1))
}
