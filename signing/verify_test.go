package signing

import (
	"net/http"
	"testing"
	"time"
)

// FuzzVerify: a request is verified only with the key, the id, the time and the body that
// were signed, whatever its headers are.
func FuzzVerify(f *testing.F) {
	key, other := make([]byte, 32), []byte("another key of at least 24 bytes")
	f.Add("e", "1795390000", "v1,AAAA", "{}")
	f.Add("", "x", "v1, v1,= v2,", "")
	f.Add("e", "-9223372036854775808", "v1,", "\x00")
	f.Fuzz(func(t *testing.T, id, seconds, signature, body string) {
		given := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {seconds}, "Webhook-Signature": {signature}}
		if _, ok := Verify(given, key, []byte(body)); ok {
			t.Errorf("%q is verified", given)
		}
		if id == "" {
			return
		}
		signed, at := http.Header{}, time.Now()
		Set(signed, [][]byte{key}, id, at, []byte(body))
		if got, ok := Verify(signed, key, []byte(body)); !ok || got.ID != id || got.At.Unix() != at.Unix() {
			t.Errorf("%q is not verified: %+v", signed, got)
		}
		_, byOther := Verify(signed, other, []byte(body))
		_, ofOther := Verify(signed, key, []byte(body+" "))
		signed.Set("Webhook-Id", id+"x")
		if _, ofID := Verify(signed, key, []byte(body)); byOther || ofOther || ofID {
			t.Errorf("%q is verified with another key, body or id", signed)
		}
	})
}
