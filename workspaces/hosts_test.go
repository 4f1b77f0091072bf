package workspaces

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

func (b bundle) track(ws uuid.UUID, url string) error {
	_, err := b.Update(b.T.Context(), ws, nil, Patch{TrackingURL: &url})
	return err
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*lemma.Error](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}

// A host belongs to the workspace that had it first, until an operator releases it.
func TestHostsOfTrackingURLs(t *testing.T) {
	b := setup(t)
	other := pgtest.Workspace(t, b.Pool)
	b.Exec(`insert into tracking_hosts (host) values ('mail.example')`) // that of a public URL
	for i, step := range []struct {
		ws   uuid.UUID
		url  string
		code string
	}{
		{b.Workspace, "https://go.shop.example", "<nil>"}, {b.Workspace, "https://go.shop.example", "<nil>"},
		{other, "https://GO.shop.example:8443", "tracking_url_taken"}, {b.Workspace, "", "<nil>"},
		{other, "https://go.shop.example.", "tracking_url_taken"},
		{b.Workspace, "https://mail.example", "<nil>"}, {other, "https://mail.example", "<nil>"}, // the public one is of all
		{other, "https://go.other.example", "<nil>"}, {other, "https://go.müller.example", ""},
	} {
		if got := codeOf(b.track(step.ws, step.url)); got != step.code {
			t.Errorf("step %d: %s", i, got)
		}
	}
	w, err := b.Get(t.Context(), other)
	if err != nil || w.TrackingURL != "https://go.other.example" {
		t.Errorf("%+v, %v", w, err)
	}
	if err := ReleaseHost(t.Context(), b.Pool, "mail.example"); err == nil {
		t.Error("the host of a public URL is released")
	}
	b.Must(ReleaseHost(t.Context(), b.Pool, "go.other.example."))
	if w, err = b.Get(t.Context(), other); err != nil || w.TrackingURL != "" {
		t.Errorf("the tracking URL that had it: %+v, %v", w, err)
	}
	b.Must(b.track(other, "https://go.other.example"))
	if err := ReleaseHost(t.Context(), b.Pool, "Go.Shop.example"); err != nil {
		t.Error(err)
	}
	if err := b.track(other, "https://go.shop.example"); err != nil {
		t.Error(err)
	}
	all, err := Hosts(t.Context(), b.Pool)
	if err != nil || len(all) != 3 || all[0].Host != "go.other.example" || all[1].Host != "go.shop.example" ||
		all[2].Workspace != "" {
		t.Errorf("%+v, %v", all, err)
	}
	b.Exec(`insert into tracking_hosts (host, workspace_id) select i || '.example', $1 from generate_series(1, $2) i`, other, mostHosts-2)
	if got := codeOf(b.track(other, "https://more.example")); got != "too_many_hosts" {
		t.Errorf("beyond the bound: %s", got)
	}
	if err := b.track(other, "https://go.shop.example"); err != nil {
		t.Errorf("one that it has: %v", err)
	}
}
