package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"lemma/client"
)

// stub is a server with fixed answers.
func stub() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /v1/events":
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, `{"id": "evt_1", "status": "accepted", "results": [
				{"flow_id": "flw_1", "status": "enrolled", "reason": null, "detail": null, "enrollment_id": "enr_1"}], "resumed": 0, "exited": 0}`)
		case "POST /v1/flows/flw_1/versions/2/publish":
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"status": 422, "code": "invalid", "detail": "version 2 has faults", "errors": [
				{"pointer": "/definition/nodes/nudge/next", "code": "unknown_node", "detail": "there is no node over"}]}`)
		default:
			fmt.Fprint(w, `{"data": [{"id": "enr_1", "profile_key": "c1", "status": "waiting"}], "next_cursor": null, "has_more": false}`)
		}
	}))
}

func Example() {
	server := stub()
	defer server.Close()
	ctx := context.Background()
	lemma, err := client.New(server.URL, "lk_...")
	if err != nil {
		panic(err)
	}

	// An event with a SourceID is recorded once, however often it is sent.
	recorded, err := lemma.RecordEvent(ctx,
		client.NewEvent{ProfileKey: "c1", Event: "signed_up", SourceID: "signup-4711", Properties: json.RawMessage(`{"plan": "pro"}`)})
	if err != nil {
		panic(err)
	}
	for _, r := range recorded.Results {
		fmt.Println(r.Status, *r.EnrollmentID)
	}

	for e, err := range lemma.ListEnrollments(ctx, client.EnrollmentFilter{FlowID: "flw_1", Status: "waiting"}) {
		if err != nil {
			panic(err)
		}
		fmt.Println(e.ProfileKey, "is", e.Status)
	}

	_, err = lemma.PublishFlowVersion(ctx, "flw_1", 2, client.InFlight{Mode: "stay"})
	if refused, ok := errors.AsType[*client.Problem](err); ok {
		for _, fault := range refused.Errors {
			fmt.Println(fault)
		}
	}
	// Output:
	// enrolled enr_1
	// c1 is waiting
	// /definition/nodes/nudge/next: there is no node over
}
