package unsubscribe_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/links"
	"lemma/message"
	"lemma/unsubscribe"
)

// A sample is as long as every real link, leads nowhere, and no token begins as its token does.
func TestSampleLinks(t *testing.T) {
	f := setup(t)
	sample := message.SampleUnsubscribeURL(publicURL)
	for channel, address := range map[lemma.Channel]string{lemma.Email: ada, lemma.SMS: "+4930123401", lemma.Push: strings.Repeat("t", 500)} {
		for _, topic := range []uuid.UUID{uuid.Nil, lemma.NewID()} {
			urls, err := f.pages.URLs(t.Context(), f.ws, unsubscribe.Content{Channel: channel, TopicID: topic, CreatedAt: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			real := urls.Of(lemma.NewID(), lemma.NewID(), address)
			if len(sample) != len(real) || !strings.HasPrefix(sample, publicURL+unsubscribe.Path+"sample") {
				t.Errorf("%s: %q is no sample of %q", channel, sample, real)
			}
		}
	}
	token := strings.TrimPrefix(sample, publicURL+unsubscribe.Path)
	if _, _, err := f.links.Verify(t.Context(), links.Unsubscribe, token); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("verified: %v", err)
	}
	if bare := message.SampleUnsubscribeURL(""); bare != message.SampleHost+unsubscribe.Path+token {
		t.Errorf("without a public URL: %q", bare)
	}
}
