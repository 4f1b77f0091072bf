package fcm

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
)

// The time of a signature grows with the cube of the size of a key. These are made of Mersenne
// primes, which need no search.
func TestSizesOfKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p, q uint // exponents
		want bool
	}{{607, 1279, false}, {1279, 2203, true}, {3217, 4423, true}, {4253, 4423, false}, {9689, 9941, false}} {
		key := &rsa.PrivateKey{PublicKey: rsa.PublicKey{E: 65537}, Primes: []*big.Int{mersenne(c.p), mersenne(c.q)}}
		key.N = new(big.Int).Mul(key.Primes[0], key.Primes[1])
		one := big.NewInt(1)
		phi := new(big.Int).Mul(new(big.Int).Sub(key.Primes[0], one), new(big.Int).Sub(key.Primes[1], one))
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

func mersenne(n uint) *big.Int {
	p := new(big.Int).Lsh(big.NewInt(1), n)
	return p.Sub(p, big.NewInt(1))
}
