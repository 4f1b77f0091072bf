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

// Tolerance is how far the time of a request may be from the receiver's clock.
const Tolerance = 5 * time.Minute

// Signed is what a signature proves about a request.
type Signed struct {
	ID string    // of the message
	At time.Time // when it was signed
}

// Verify checks the three headers of a request, of which one signature must be of the
// key. Whether the time is within Tolerance is left to the caller.
func Verify(h http.Header, key, body []byte) (Signed, bool) {
	id, seconds := h.Get("webhook-id"), h.Get("webhook-timestamp")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || id == "" {
		return Signed{}, false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + seconds + "."))
	mac.Write(body)
	sum := mac.Sum(nil)
	for signature := range strings.FieldsSeq(h.Get("webhook-signature")) {
		text, ok := strings.CutPrefix(signature, "v1,")
		if !ok {
			continue
		}
		if given, err := base64.StdEncoding.DecodeString(text); err == nil && hmac.Equal(given, sum) {
			return Signed{ID: id, At: time.Unix(at, 0)}, true
		}
	}
	return Signed{}, false
}
