package sender

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma/cache"
	"lemma/message"
	"lemma/suppression"
	"lemma/tracking"
	"lemma/unsubscribe"
)

// content is what all messages of a batch share: template, headers and envelope.
type content struct {
	renderMessage func(payload, unsubscribeURL string, t message.Tracking, within time.Duration) (
		message.Content, [][2]string, error)
	unsubscribe                  *unsubscribe.URLs // nil: no message has a link
	tracked                      *tracking.Signer  // nil: nothing is tracked
	fromName, fromEmail, replyTo string
	suppressed                   suppression.Message // what its recipients are checked for
	publicURL                    string              // when the content was read: another one makes other links
	bytes                        int                 // of memory, estimated
}

// caches keep contents, which never change, by the size of what is compiled, and one
// carrier for each provider, which is replaced when the provider's version changes.
type caches struct {
	contents *cache.Cache[uuid.UUID, *content]

	opening  sync.Mutex
	carriers *cache.Cache[uuid.UUID, opened] // by provider
	paces    *cache.Cache[uuid.UUID, *pace]  // by provider, and by origin for its reads
}

// Bytes of what is kept by provider. A carrier counts its account twice, since it may keep
// it in another form, and carrierBytes for its transport.
const (
	carriersBytes = 128 << 20
	carriersShare = 32 << 20
	carrierBytes  = 32 << 10
	pacesBytes    = 64 << 20 // of 16,000
)

func newCaches() caches {
	return caches{contents: cache.New[uuid.UUID, *content](message.CacheBytes, message.CacheShare),
		carriers: cache.New[uuid.UUID, opened](carriersBytes, carriersShare), paces: cache.New[uuid.UUID, *pace](pacesBytes, pacesBytes)}
}

type opened struct {
	version int
	carrier Carrier
}

// Follow makes what is kept in memory keep to a history.
func (s *Sender) Follow(h *cache.History) {
	s.cache.contents.Follow(h)
	s.cache.carriers.Follow(h)
}

// prepare returns the batch's carrier and content. Its errors are of a lemma kind when
// the provider or the content is at fault.
func (s *Sender) prepare(ctx context.Context, c *claim) (Carrier, *content, error) {
	d, err := s.content(ctx, c.WorkspaceID, c.contentID)
	if err != nil {
		return nil, nil, err
	}
	if _, err = s.linked(ctx, c, d); err != nil {
		return nil, nil, err
	}
	carrier, err := s.carrier(ctx, c)
	return carrier, d, err
}

// linked reads where the links of the next messages lead. same is false if the public URL was changed since the
// content was read, which has the earlier one.
func (s *Sender) linked(ctx context.Context, c *claim, d *content) (same bool, err error) {
	if d.publicURL != s.publicURL() {
		c.detail = "the public URL was changed"
		return false, nil
	}
	if d.tracked != nil {
		c.trackingURL, err = s.tracking.Base(ctx, c.WorkspaceID)
	}
	return err == nil, err
}

func (s *Sender) content(ctx context.Context, workspaceID, contentID uuid.UUID) (*content, error) {
	if d, ok := s.cache.contents.Get(contentID); ok && d.publicURL == s.publicURL() {
		return d, nil
	}
	now := s.cache.contents.Now()
	d, err := s.readContent(ctx, workspaceID, contentID)
	if err != nil {
		return nil, err
	}
	s.cache.contents.Put(now, workspaceID, contentID, d, d.bytes)
	return d, nil
}

func (s *Sender) readContent(ctx context.Context, workspaceID, contentID uuid.UUID) (*content, error) {
	d := &content{publicURL: s.publicURL()}
	var of contentSource
	var headers map[string]string
	var topic uuid.NullUUID
	var replaced message.Replacement
	var created time.Time
	err := s.pool.QueryRow(ctx, `
		select template_id, coalesce(template_version, 0), inline, from_name, from_email, reply_to, headers,
			channel, transactional, topic_id, coalesce(subject, ''), coalesce(preheader, ''), created_at
		from contents where workspace_id = $1 and id = $2`, workspaceID, contentID).
		Scan(&of.template, &of.version, &of.inline, &d.fromName, &d.fromEmail, &d.replyTo, &headers,
			&d.suppressed.Channel, &d.suppressed.Transactional, &topic,
			&replaced.Subject, &replaced.Preheader, &created)
	if err != nil {
		return nil, fmt.Errorf("read content %s: %w", contentID, err)
	}
	d.suppressed.TopicID = topic.UUID
	compiled, err := s.compiled(ctx, workspaceID, of)
	if err != nil {
		return nil, err
	}
	if compiled, err = compiled.Replaced(replaced); err != nil {
		return nil, err
	}
	if s.pages != nil {
		headers = message.SentHeaders(d.suppressed.Channel, d.suppressed.Transactional, headers)
	}
	if compiled, err = compiled.WithHeaders(headers); err != nil {
		return nil, err
	}
	if s.pages != nil && compiled.Unsubscribes() {
		of := unsubscribe.Content{Channel: d.suppressed.Channel, TopicID: d.suppressed.TopicID, CreatedAt: created}
		if d.unsubscribe, err = s.pages.URLs(ctx, workspaceID, of); err != nil {
			return nil, err
		}
	}
	if track := compiled.Tracks(d.suppressed.Transactional); s.tracking.On() && track != (message.Track{}) {
		if compiled, err = compiled.Tracked(track); err != nil {
			return nil, err
		}
		if d.tracked, err = s.tracking.Signer(ctx, workspaceID, created, track); err != nil {
			return nil, err
		}
	}
	d.renderMessage, d.bytes = compiled.RenderTracked, compiled.Bytes()
	return d, nil
}

// publicURL is under which the links of messages lead; empty: they have none.
func (s *Sender) publicURL() string {
	if s.pages == nil {
		return ""
	}
	return s.pages.PublicURL()
}

// contentSource is what a content is compiled from: a version of a template, or its own text.
type contentSource struct {
	template uuid.NullUUID
	version  int
	inline   *string
}

func (s *Sender) compiled(ctx context.Context, workspaceID uuid.UUID, of contentSource) (*message.Compiled, error) {
	if of.inline == nil {
		return s.templates.Compiled(ctx, workspaceID, of.template.UUID, of.version)
	}
	return message.CompileStored(workspaceID, *of.inline)
}

// renderRow renders the message of a row, with the link of its recipient to unsubscribe,
// and with links under a tracking URL.
func (d *content) renderRow(origin uuid.UUID, r row, trackingURL string, within time.Duration) (message.Content, [][2]string, error) {
	link := ""
	if d.unsubscribe != nil {
		link = d.unsubscribe.Of(origin, r.Key, r.Address)
	}
	var t message.Tracking
	if d.tracked != nil && trackingURL != "" {
		t = d.tracked.Of(trackingURL, link, origin, r.Key)
	}
	return d.renderMessage(r.Payload, link, t, within)
}

func (s *Sender) carrier(ctx context.Context, c *claim) (Carrier, error) {
	now := s.cache.carriers.Now()
	if have, ok := s.cache.carriers.Get(c.providerID); ok && have.version == c.version {
		return have.carrier, nil
	}
	if _, ok := s.kinds[c.kind]; !ok {
		return nil, unknownKind(c.kind)
	}
	a, err := s.accounts.Account(ctx, c.WorkspaceID, c.providerID)
	if err != nil {
		return nil, err
	}
	carrier, err := s.openCarrier(c.WorkspaceID, c.providerID, a, nil)
	if err != nil {
		return nil, err
	}
	return s.cache.put(now, c, opened{a.Version, carrier}, carrierBytes+2*(len(a.Config)+len(a.Secrets))), nil
}

// put keeps a carrier that was opened from an account read at a moment, and returns the newest.
// A carrier that is replaced, or evicted by others, is not closed, since a worker may use it:
// its idle connections time out.
func (k *caches) put(read cache.Moment, c *claim, o opened, bytes int) Carrier {
	k.opening.Lock()
	defer k.opening.Unlock()
	if have, ok := k.carriers.Get(c.providerID); ok && (read != k.carriers.Now() || have.version >= o.version) {
		go o.carrier.Close()
		return have.carrier
	}
	k.carriers.Put(read, c.WorkspaceID, c.providerID, o, bytes)
	return o.carrier
}

func (k *caches) close() {
	var all sync.WaitGroup
	for _, o := range k.carriers.Clear() {
		all.Go(o.carrier.Close)
	}
	all.Wait()
}
