// Package signing signs requests as Standard Webhooks describes (standardwebhooks.com):
// a receiver with the secret can check that a request comes from Lemma, is unchanged
// and is not old.
package signing

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const prefix = "whsec_"

// Secret is a secret as Standard Webhooks writes it.
func Secret(key []byte) string { return prefix + base64.StdEncoding.EncodeToString(key) }

// Key is the key of a secret. It is not ok if the secret has another form, or fewer
// than 24 or more than 64 bytes.
func Key(secret string) (key []byte, ok bool) {
	text, ok := strings.CutPrefix(secret, prefix)
	if !ok {
		return nil, false
	}
	key, err := base64.StdEncoding.DecodeString(text)
	return key, err == nil && len(key) >= 24 && len(key) <= 64
}

// Set writes the three headers of a message: its id, the time, and one signature for
// each key.
func Set(h http.Header, keys [][]byte, id string, at time.Time, body []byte) {
	seconds := strconv.FormatInt(at.Unix(), 10)
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + seconds + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", seconds)
	h.Set("webhook-signature", strings.Join(signatures, " "))
}
