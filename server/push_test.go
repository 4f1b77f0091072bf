package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/audience"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
	"lemma/workspaces"
)

// vapid is a private key, with its texts for APNs (PEM) and Web Push (base64url).
func vapid(t *testing.T) (inPEM, private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, _ := x509.MarshalPKCS8PrivateKey(key)
	raw, _ := key.Bytes()
	point, _ := key.PublicKey.Bytes()
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		base64.RawURLEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(point)
}

// Campaigns made by the API reach the devices of a profile over APNs and its browser over
// Web Push, and a token that is gone has its reason.
func TestCampaignsOverAPNsAndWebPush(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inPEM, private, public := vapid(t)
	carrier := sendertest.ServeHTTPS(t, true, func(r sendertest.Received) sendertest.Reply {
		switch {
		case strings.HasSuffix(r.Path, "dead"):
			return sendertest.Reply{Status: 410, Body: `{"reason":"Unregistered","timestamp":1629000000000}`}
		case strings.HasPrefix(r.Path, "/3/device/"):
			return sendertest.Reply{Status: 200, Header: map[string]string{"apns-id": r.Header.Get("Apns-Id")}}
		}
		return sendertest.Reply{Status: 201, Header: map[string]string{"Location": "https://push.example/m/1"}}
	})
	subscription := func(path string) string {
		return fmt.Sprintf(`{"endpoint":"%s/%s","expirationTime":null,"keys":{"p256dh":%q,"auth":"BTBZMqHH6r4Tts7J_aSIgg"}}`,
			carrier.URL, path, public)
	}
	f := shop.New(pgtest.NewShop(t, `create table people (id text, ios jsonb, web jsonb)`,
		fmt.Sprintf(`insert into people values ('anna', '["00aa","00dead"]', '[%s,%s]')`, subscription("web"), subscription("dead"))),
		shop.Local, nil)
	s, err := New(Deps{Pool: f.Pool, Box: f.Box, Log: slog.New(slog.DiscardHandler)},
		Config{Sources: shop.Local, Carriers: wire.Operator{AllowPrivate: true, AllowStrange: true, Roots: carrier.Roots}})
	f.Must(err)
	_, token, err := s.Workspaces.CreateKey(ctx, f.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "t", Scopes: []string{workspaces.Admin}})
	f.Must(err)
	f.Must(s.StartWorkers(context.WithoutCancel(ctx)))
	t.Cleanup(func() { _ = s.Stop() })
	call := func(method, path string, in, out any) {
		t.Helper()
		callAPI(t, s.API, token, method, path, in, out)
	}

	source := f.NewSource(f.DSN)
	var template struct{ ID string }
	call("POST", "/v1/templates", map[string]any{"name": "Order", "channel": "push", "title": "Order", "body": "{{ id }} is ready",
		"link": "https://shop.example/7", "data": map[string]string{"order": "7"}}, &template)
	for column, provider := range map[string]map[string]any{
		"ios": {"kind": "apns", "secrets": map[string]any{"private_key": inPEM}, "config": map[string]any{"key_id": "ABC123DEFG",
			"team_id": "DEF123GHIJ", "topic": "com.example.shop", "endpoint": carrier.URL}},
		"web": {"kind": "webpush", "secrets": map[string]any{"vapid_private_key": private},
			"config": map[string]any{"subject": "mailto:push@shop.example", "vapid_public_key": public}},
	} {
		people, err := s.Audiences.Create(ctx, f.Workspace, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source, Name: column,
			SQL: "select id, " + column + " from people", KeyColumn: "id", PushColumn: column})
		f.Must(err)
		provider["name"] = column
		var made struct {
			ID             string
			Channel        string
			EffectiveBound struct {
				AtLeastOnce int `json:"at_least_once"`
				Word        string
			} `json:"effective_bound"`
		}
		call("POST", "/v1/providers", provider, &made)
		word := map[string]string{"ios": "replaced", "web": "twice"}[column]
		if made.Channel != "push" || made.EffectiveBound.AtLeastOnce != 2 || made.EffectiveBound.Word != word {
			t.Errorf("%s: %+v", column, made)
		}
		for i, reason := range []string{"token_unregistered", "suppressed"} { // the second campaign does not call the token
			var campaign struct{ ID string }
			call("POST", "/v1/campaigns", map[string]any{"name": column, "audience_id": lemma.FormatID(lemma.PrefixAudience, people.ID),
				"template_id": template.ID, "provider_id": made.ID}, &campaign)
			call("POST", "/v1/campaigns/"+campaign.ID+"/send", map[string]any{}, nil)
			var ended struct {
				Status string
				Counts struct{ Sent, Failed, Skipped int }
			}
			pgtest.Eventually(t, 30*time.Second, "the campaign is completed", func() bool {
				call("GET", "/v1/campaigns/"+campaign.ID, nil, &ended)
				return ended.Status == "completed"
			})
			if ended.Counts.Sent != 1 || ended.Counts.Failed != 1-i || ended.Counts.Skipped != i {
				t.Errorf("%s: %+v", column, ended)
			}
			var gone struct {
				Data []struct {
					Reason, Address string
					Detail          string `json:"carrier_detail"`
				}
			}
			call("GET", "/v1/notifications?status="+[]string{"failed", "skipped"}[i]+"&campaign_id="+campaign.ID, nil, &gone)
			if len(gone.Data) != 1 || gone.Data[0].Reason != reason || !strings.Contains(gone.Data[0].Address, "dead") ||
				i == 1 && gone.Data[0].Detail != "token_unregistered" {
				t.Errorf("%s: %+v", column, gone)
			}
			f.Eventually("the token is suppressed", func() bool {
				return f.Count(`select count(*) from suppressions where cause = 'token_unregistered'
					and (address = '00dead') = $1`, column == "ios") == 1
			})
		}
	}
	requests := map[string]int{}
	for _, r := range carrier.Received(func(sendertest.Received) bool { return true }) {
		requests[r.Path]++
	}
	if diff := cmp.Diff(map[string]int{"/3/device/00aa": 2, "/3/device/00dead": 1, "/web": 2, "/dead": 1}, requests); diff != "" {
		t.Error(diff)
	}
}

// callAPI calls the API and reads its answer.
func callAPI(t testing.TB, handler http.Handler, token, method, path string, in, out any) {
	t.Helper()
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(raw)
	}
	r := httptest.NewRequest(method, path, body)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	if out != nil {
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
			t.Fatal(err)
		}
	}
}
