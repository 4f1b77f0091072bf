package tracking

import (
	"net/http"
	"testing"

	"lemma/pgtest"
)

// Under the host of another workspace no link leads anywhere, and no open is recorded.
func TestLinksUnderTheHostOfAnother(t *testing.T) {
	b := setup(t)
	b.Exec(`insert into tracking_hosts (host, workspace_id) values ('go.other.example', $1), ('go.shop.example', $2)`,
		pgtest.Workspace(t, b.Pool), b.Workspace)
	for host, want := range map[string]int{"go.other.example": http.StatusNotFound, "go.shop.example:443": http.StatusFound} {
		for link, want := range map[string]int{b.links(0).Click(1, "https://shop.example"): want,
			b.links(0).Open: map[bool]int{true: http.StatusOK, false: want}[want == http.StatusFound]} {
			if got := b.request("GET", link, "Host", host); got.StatusCode != want {
				t.Errorf("%s under %s: %d, want %d", link[:40], host, got.StatusCode, want)
			}
		}
	}
}
