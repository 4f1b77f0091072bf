package direct

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/address"
	"lemma/audience"
	"lemma/mail"
	"lemma/message"
	"lemma/notifications"
)

// The strategies.
const (
	AtMostOnce  = "at_most_once"  // the default of workspaces
	AtLeastOnce = "at_least_once" // bounded by two
)

// Request is what a client requests. Pointers in errors are those of the API.
type Request struct {
	ID     uuid.UUID // made by the caller; the time in it decides on the month of the notification
	Again  bool      // an earlier attempt of this request may have stored its notification
	Hash   uuid.UUID // of the whole request, to recognise another one under the same key
	Key    string    // empty: none
	Email  Envelope  // of an email
	Topic  *uuid.UUID
	To     To
	Data   map[string]json.RawMessage
	Inline *message.Content // nil: the template

	Channel         lemma.Channel // empty: that of the content
	TemplateID      *uuid.UUID
	TemplateVersion int // 0: the newest
	ProviderID      *uuid.UUID
	Transactional   *bool  // nil: without a topic it is
	Strategy        string // empty: that of the workspace
	SendAt          *time.Time
	ExpiresAt       *time.Time
	Metadata        map[string]string
	LockFor         time.Duration // 0: that of the workspace
	SealFor         time.Duration // the same
}

// To is the recipient: an address, or a profile of an audience.
type To struct {
	Address    string
	ProfileKey string
	AudienceID *uuid.UUID
}

// Envelope has the headers of an email.
type Envelope struct {
	FromEmail, FromName, ReplyTo string
	Headers                      map[string]string
}

// request is a request that is being carried out.
type request struct {
	Request
	content *content
	key     uuid.UUID // zero: none
	held    bool      // its key is locked, and not stored
	over    uuid.UUID // the last token of its key, which is unlocked
	row     notifications.Direct
	link    string // a sample of the link to unsubscribe, as long as that of the notification
	others  int    // further addresses of the profile
	hidden  bool   // the caller may not read the profile's row
	done    bool   // result is the answer
	result  result
}

type result = Result

func newRequest(ws uuid.UUID, n Request, t times, bulk bool) *request {
	if n.LockFor == 0 {
		n.LockFor = t.lock
	}
	if n.SealFor == 0 {
		n.SealFor = t.seal
	}
	if n.Strategy == "" {
		n.Strategy = t.strategy
	}
	r := &request{Request: n}
	if n.Key != "" {
		r.key = lemma.Key("direct-key/1", n.Key)
	}
	r.row = notifications.Direct{OriginID: notifications.DirectOrigin(ws, timeOf(n.ID)), Key: n.ID, MaxAttempts: 1, Last: bulk}
	if n.Strategy == AtLeastOnce {
		r.row.MaxAttempts = 2
	}
	if n.SendAt != nil { // whole seconds, so that requests with other times share batches
		r.row.DueAt = n.SendAt.Add(time.Second - time.Nanosecond).Truncate(time.Second)
	}
	if n.ExpiresAt != nil {
		r.row.ExpiresAt = n.ExpiresAt.Truncate(time.Second)
	}
	return r
}

// timeOf is the time at which a UUIDv7 was made.
func timeOf(id uuid.UUID) time.Time {
	seconds, nanoseconds := id.Time().UnixTime()
	return time.Unix(seconds, nanoseconds)
}

func (r *request) fail(err error) { r.done, r.result.Err = true, err }

// complete checks a request and finds its content, and its recipient unless that is in an
// audience.
func (d *Direct) complete(ctx context.Context, ws uuid.UUID, r *request) error {
	now, err := d.clock.Now(ctx)
	if err != nil {
		return err
	}
	if err := r.check(now); err != nil {
		return err
	}
	if r.content, err = d.find(ctx, ws, r); err != nil {
		return err
	}
	r.row.ContentID, r.row.ProviderID = r.content.id, r.content.provider
	r.link = message.SampleUnsubscribeURL(d.PublicURL())
	if r.To.AudienceID != nil {
		return r.mayUseRow(ctx)
	}
	to := address.Parse(r.content.channel, r.To.Address)
	if to.Fault != "" {
		return lemma.Fault("/to/address", to.Fault, "must be an address for %s", r.content.channel)
	}
	r.row.Address, r.row.ProfileKey = to.Text, r.To.ProfileKey
	if r.row.ProfileKey == "" {
		r.row.ProfileKey = to.Canonical
	}
	if missing := r.missing(); len(missing) > 0 {
		return lemma.Fault("/data", "unknown_variable", "must have %s, which the content uses", strings.Join(missing, ", "))
	}
	r.row.Payload = r.payload(nil)
	return r.render()
}

// mayUseRow refuses Liquid of a request that uses the row of its profile, for a caller that
// may not read rows: whether it can be rendered depends on their values.
func (r *request) mayUseRow(ctx context.Context) error {
	r.hidden = !audience.MayReadRows(ctx)
	uses := r.missing()
	if !r.hidden || len(uses) == 0 {
		return nil
	}
	var fields []lemma.Field
	refuse := func(pointer string) {
		fields = append(fields, lemma.Field{Pointer: pointer, Code: missingScope, Detail: "uses data of a profile (" +
			strings.Join(uses, ", ") + "), which needs the scope audiences:query; use a template, or give the data"})
	}
	if r.Inline != nil {
		refuse("/content")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Email.Headers)) {
		if mail.HasLiquid(r.Email.Headers[name]) {
			refuse(mail.HeaderPointer(name))
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return &lemma.Error{Kind: lemma.Forbidden, Code: missingScope, Message: "the key does not have the scope audiences:query", Fields: fields}
}

const missingScope = "missing_scope"

// render renders the message once, so that what cannot be rendered is refused before
// anything is stored. A fault of a template is one of the data for it.
func (r *request) render() error {
	_, _, err := r.content.compiled.RenderMessage(r.row.Payload, r.link)
	e, ok := errors.AsType[*lemma.Error](err)
	if !ok {
		return err
	}
	if r.hidden { // the text of the fault depends on values of the row
		return &lemma.Error{Kind: e.Kind, Code: e.Code, Message: e.Message, Fields: []lemma.Field{{Pointer: "/data", Code: e.Code,
			Detail: "the message cannot be rendered with the data of this profile; for a key with the scope audiences:query the answer says why"}}}
	}
	shown := *e
	shown.Fields = slices.Clone(e.Fields)
	for i := range shown.Fields {
		f := &shown.Fields[i]
		switch part := strings.TrimPrefix(f.Pointer, "/"); {
		case part == "":
			f.Pointer = "/data"
		case strings.HasPrefix(part, "headers/"): // is one of the request
		case r.Inline != nil:
			f.Pointer = "/content/" + part
		default:
			f.Pointer, f.Detail = "/data", "the "+part+" of the template: "+f.Detail
		}
	}
	return &shown
}

// check finds faults that need no row. now is the time of the database.
func (r *request) check(now time.Time) error {
	var fields []lemma.Field
	fault := func(pointer, code, format string, args ...any) {
		fields = append(fields, lemma.Field{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
	}
	switch {
	case r.To.AudienceID == nil && r.To.Address == "":
		fault("/to", "required", "must have an address, or a profile_key with an audience_id")
	case r.To.AudienceID != nil && r.To.Address != "":
		fault("/to", "exclusive", "must have an address or an audience_id, not both")
	case r.To.AudienceID != nil && r.To.ProfileKey == "":
		fault("/to/profile_key", "required", "must be given with audience_id")
	}
	if (r.TemplateID == nil) == (r.Inline == nil) {
		fault("/template_id", "required", "must be given, or content in its place, and not both")
	}
	if r.TemplateID == nil && r.TemplateVersion != 0 {
		fault("/template_version", "exclusive", "must not be given without template_id")
	}
	if r.Topic != nil && r.Transactional != nil && *r.Transactional {
		fault("/transactional", "exclusive", "must not be true for a notification with a topic")
	}
	if n := r.dataBytes(); n > MaxData {
		fault("/data", "too_long", "must have at most %d bytes, and has %d", MaxData, n)
	}
	if err, wrong := errors.AsType[*lemma.Error](lemma.CheckMetadata("/metadata", r.Metadata)); wrong {
		fields = append(fields, err.Fields...)
	}
	if len(r.Key) > MaxKey {
		fault("/key", "too_long", "must have at most %d bytes", MaxKey)
	}
	for _, t := range []struct {
		pointer string
		value   time.Duration
		most    time.Duration
	}{{"/lock_for", r.LockFor, MostLock}, {"/seal_for", r.SealFor, MostSeal}} {
		if t.value < LeastTime || t.value > t.most {
			fault(t.pointer, "out_of_range", "must be from %s to %s", LeastTime, t.most)
		}
	}
	if r.SendAt != nil && r.SendAt.After(now.Add(MaxAhead)) {
		fault("/send_at", "out_of_range", "must be at most %d days ahead", int(MaxAhead.Hours()/24))
	}
	if r.ExpiresAt != nil && r.SendAt != nil && !r.row.ExpiresAt.After(r.row.DueAt) {
		fault("/expires_at", "out_of_range", "must be at least a second after send_at")
	}
	if len(fields) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid", Fields: fields}
	}
	if len(r.Metadata) > 0 {
		text, err := json.Marshal(r.Metadata)
		if err != nil {
			return fmt.Errorf("write metadata: %w", err)
		}
		r.row.Metadata = string(text)
	}
	return nil
}

func (r *request) dataBytes() (n int) {
	for name, value := range r.Data {
		n += len(name) + len(value) + len(`"":,`)
	}
	return n
}

// missing are the variables of the content that the data does not have.
func (r *request) missing() []string {
	return slices.DeleteFunc(slices.Clone(r.content.variables), func(name string) bool { _, ok := r.Data[name]; return ok })
}

// payload has the variables that the content uses, and no others: from the data, or else
// from the profile.
func (r *request) payload(profile map[string]json.RawMessage) string {
	values := make(map[string]json.RawMessage, len(r.content.variables))
	for _, name := range r.content.variables {
		if v, ok := r.Data[name]; ok {
			values[name] = v
		} else if v, ok := profile[name]; ok {
			values[name] = v
		}
	}
	text, _ := json.Marshal(values) // the values are checked JSON
	return message.Stored(string(text))
}

// times are the defaults of a workspace.
type times struct {
	lock, seal time.Duration
	strategy   string
}

// defaults remember those of workspaces for a moment.
type defaults struct {
	mu sync.Mutex
	by map[uuid.UUID]remembered
}

type remembered struct {
	times
	at time.Time
}

// fresh is how long what rarely changes is not read again.
const fresh = time.Second

func (d *defaults) of(ctx context.Context, pool *pgxpool.Pool, ws uuid.UUID) (times, error) {
	d.mu.Lock()
	have, ok := d.by[ws]
	d.mu.Unlock()
	if ok && time.Since(have.at) < fresh {
		return have.times, nil
	}
	now := remembered{at: time.Now()}
	err := pool.QueryRow(ctx, `select lock_for, seal_for, strategy from workspaces where id = $1`, ws).
		Scan(&now.lock, &now.seal, &now.strategy)
	if err != nil {
		return times{}, fmt.Errorf("read defaults of direct notifications: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.by == nil || len(d.by) > 10_000 {
		d.by = map[uuid.UUID]remembered{}
	}
	d.by[ws] = now
	return now.times, nil
}
