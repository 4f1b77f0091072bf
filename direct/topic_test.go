package direct

import (
	"context"
	"testing"
	"time"

	"lemma"
	"lemma/audience"
	"lemma/suppression"
)

// A topic whose notifications wait is not deleted, since those that have unsubscribed from
// it would be sent to.
func TestATopicOfWaitingNotificationsIsNotDeleted(t *testing.T) {
	b := setup(t)
	ctx := context.Background()
	d, s, topics := b.process(), b.sender(), suppression.New(b.Pool)
	topic, err := topics.CreateTopic(ctx, b.Workspace, suppression.NewTopic{ID: lemma.NewID(), Name: "News"})
	b.Must(err)
	later := time.Now().Add(time.Hour)
	of := func(r *Request) {
		r.Topic, r.Email.Headers = &topic.ID, map[string]string{"List-Unsubscribe": "<mailto:stop@shop.example>"}
	}
	b.send(d, b.request("", of, func(r *Request) { r.SendAt = &later }), accepted)
	inUse := func(err error) bool { return err != nil && lemma.KindOf(err) == lemma.Conflict }
	if err := topics.DeleteTopic(ctx, b.Workspace, topic.ID); !inUse(err) {
		t.Fatalf("the topic of a notification that waits: %v", err)
	}
	b.Exec(`update batches set due_at = now()`)
	b.work(s)
	d.Hook = func(_ context.Context, at string) {
		if at == "storing" {
			b.Must(topics.DeleteTopic(ctx, b.Workspace, topic.ID))
		}
	}
	if _, err := d.Send(ctx, b.Workspace, b.request("", of)); !inUse(err) {
		t.Errorf("a request whose topic was deleted meanwhile: %v", err)
	}
	b.WantCount(1, `select count(*) from notifications`)
}

// A topic is deleted while a request stores a notification of it: the deletion waits, and finds
// the notification.
func TestATopicIsDeletedWhileANotificationIsStored(t *testing.T) {
	b := setup(t)
	ctx := context.Background()
	d, topics := b.process(), suppression.New(b.Pool)
	topic, err := topics.CreateTopic(ctx, b.Workspace, suppression.NewTopic{ID: lemma.NewID(), Name: "News"})
	b.Must(err)
	r := b.request("")
	r.Topic, r.Email.Headers = &topic.ID, map[string]string{"List-Unsubscribe": "<mailto:stop@shop.example>"}
	held, err := b.Pool.Begin(ctx)
	b.Must(err)
	_, err = held.Exec(ctx, `lock table batches in share mode`)
	b.Must(err)
	sent, deleted := make(chan error, 1), make(chan error, 1)
	go func() { _, err := d.Send(ctx, b.Workspace, r); sent <- err }()
	b.WaitForLocks(1)
	go func() { deleted <- topics.DeleteTopic(ctx, b.Workspace, topic.ID) }()
	b.WaitForLocks(2)
	b.Must(held.Rollback(ctx))
	b.Must(<-sent)
	if err := <-deleted; err == nil || lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("the topic of a notification that waits: %v", err)
	}
}

// A change of an audience that reads for long what needs it holds up no request to one of its profiles.
func TestANotificationIsStoredWhileItsAudienceChanges(t *testing.T) {
	b := setup(t)
	ctx := context.Background()
	d := b.process()
	checks := 0
	check := func(context.Context, audience.Audience) error {
		if checks++; checks == 1 {
			return nil // before the audience is locked
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := d.Send(ctx, b.Workspace, b.ofProfile(""))
		return err
	}
	_, err := b.Audiences.Update(ctx, b.Workspace, b.Audience, nil, audience.Patch{Name: new("renamed")}, check)
	b.Must(err)
	if checks != 2 {
		t.Errorf("%d checks", checks)
	}
}

// An audience is deleted while a request stores a notification to one of its profiles, which may be read again
// before the notification is sent: the deletion waits, and finds the notification.
func TestAnAudienceIsDeletedWhileANotificationIsStored(t *testing.T) {
	b := setup(t)
	ctx := context.Background()
	d := b.process()
	held, err := b.Pool.Begin(ctx)
	b.Must(err)
	_, err = held.Exec(ctx, `lock table batches in share mode`)
	b.Must(err)
	sent, deleted := make(chan error, 1), make(chan error, 1)
	go func() { _, err := d.Send(ctx, b.Workspace, b.ofProfile("")); sent <- err }()
	b.WaitForLocks(1)
	go func() { deleted <- b.Audiences.Delete(ctx, b.Workspace, b.Audience) }()
	b.WaitForLocks(2)
	b.Must(held.Rollback(ctx))
	b.Must(<-sent)
	if err := <-deleted; err == nil || lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("the audience of a notification that waits: %v", err)
	}
	b.work(b.sender())
	b.Must(b.Audiences.Delete(ctx, b.Workspace, b.Audience))
}
