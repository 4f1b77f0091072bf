package flowstest

import (
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/message"
)

// Welcome is a flow of one message, a wait and another message.
const Welcome = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},
	"start":"hello","nodes":{"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"P3D","next":"nudge"},"nudge":{$send,"next":"end"},
		"end":{"type":"exit"}}}`

// Minimal is the shortest flow that can be published.
const Minimal = `{"triggers":[{"type":"event","event":"hi"}],"recurrence":{"policy":"per_event"},"start":"end",
	"nodes":{"end":{"type":"exit"}}}`

// NewTemplate is a template with a body.
func NewTemplate(body string) message.NewTemplate {
	return message.NewTemplate{ID: lemma.NewID(), Name: uuid.NewString(), Content: message.Content{Subject: "s", HTML: body}}
}

// HourAfter is a flow that an event enrolls into, with a wait of an hour.
func HourAfter(event string) string { return strings.ReplaceAll(anHour, "$event", event) }

// ForAnHour is a flow that waits an hour for an event.
const ForAnHour = `{"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"buy","nodes":{
	"buy":{"type":"wait_for_event","event":"bought","condition":"!has(event.properties.big) || event.properties.big == true",
		"timeout":"PT1H","next":"thanks","on_timeout":"nudge"},
	"thanks":{"type":"exit","goal":true},"nudge":{"type":"exit"}}}`

const anHour = `{"triggers":[{"type":"event","event":"$event"}],"recurrence":{"policy":"once"},"start":"wait",
	"nodes":{"wait":{"type":"delay","for":"PT1H","next":"end"},"end":{"type":"exit"}}}`

// Napping is a flow of one wait.
const Napping = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"nap",
	"nodes":{"nap":{"type":"delay","for":"P3D","next":"end"},"end":{"type":"exit"}}}`

// Polled is a flow that polls its audience each minute; condition is the trigger's.
func Polled(policy, condition string) string {
	if condition != "" {
		condition = `,"condition":"` + condition + `"`
	}
	return `{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1M"` + condition + `}],
		"recurrence":{"policy":"` + policy + `"},
		"start":"w","nodes":{"w":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
}

// Recurring is a flow with a recurrence.
func Recurring(recurrence string) string {
	return strings.Replace(`{"triggers":[{"type":"event","event":"go"}],"recurrence":R,"start":"end","nodes":{"end":{"type":"exit"}}}`,
		"R", recurrence, 1)
}

// CallsWebhook is a flow of one webhook.
const CallsWebhook = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"notify","nodes":{
	"notify":{"type":"webhook","endpoint_id":"$endpoint","next":"end"},"end":{"type":"exit"}}}`

// TwoMessages is a flow with a message before and one after a wait.
const TwoMessages = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"hello",
	"nodes":{
	"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"P1D","next":"nudge"},"nudge":{$send,"next":"end"},"end":{"type":"exit"}}}`

// TwoMessagesOtherwise is TwoMessages with another last node.
var TwoMessagesOtherwise = strings.ReplaceAll(TwoMessages, `"nudge"`, `"other"`)

// UntilTomorrow is a flow of one wait for a day.
func UntilTomorrow(recurrence, event string) string {
	return `{"triggers":[{"type":"event","event":"` + event + `"}],"recurrence":{"policy":"` + recurrence + `"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
}
