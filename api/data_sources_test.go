package api

import (
	"strings"
)

func (b *bundle) checkDataSources(w world) {
	b.T.Helper()
	path := "/v1/data_sources/" + w.source
	if got := b.do("GET", path, nil).is(200); got.header.Get("ETag") != `"1"` || strings.Contains(string(got.body), "reader_") {
		b.T.Errorf("a data source: ETag %s, %s", got.header.Get("ETag"), got.body)
	}
	b.do("POST", path+"/test", nil).is(200)
	if got := b.do("GET", path, nil); got.text("status") != "ok" {
		b.T.Errorf("tested: %s", got.body)
	}
	if got := b.do("GET", path+"/schema", nil).is(200); !strings.Contains(string(got.body), `"customers"`) {
		b.T.Errorf("schema: %s", got.body)
	}
	b.do("PATCH", path, object{"name": "Shop 2"}, header("If-Match", `"1"`)).is(200)
	b.do("PATCH", path, object{"name": "Shop 3"}, header("If-Match", `"1"`)).is(412)
	b.do("GET", "/v1/data_sources?limit=1", nil).is(200)
	b.do("DELETE", path, nil).is(409)
	gone := b.do("POST", "/v1/data_sources", object{"name": "Gone", "kind": "mysql", "dsn": "u:p@tcp(db.example.com:3306)/x"}).is(201)
	if gone.header.Get("Location") != "/v1/data_sources/"+gone.id() {
		b.T.Errorf("Location is %q", gone.header.Get("Location"))
	}
	b.do("DELETE", gone.header.Get("Location"), nil).is(204)
	b.do("GET", gone.header.Get("Location"), nil).is(404)
}
