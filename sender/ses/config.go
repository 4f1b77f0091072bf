package ses

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"time"

	"lemma/sender/form"
	"lemma/sender/ses/sns"
	"lemma/sender/wire"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	region, configurationSet             string
	topic                                string   // of Amazon SNS, which has the events; empty: none
	endpoint                             *url.URL // without a path
	accessKeyID, secretKey, sessionToken string
	most                                 int           // requests at a time
	timeout                              time.Duration // of a call
}

const defaultTimeout = 30 // seconds

var (
	regions = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]{2,12}){1,3}-[0-9]{1,2}$`)
	setName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	keyID   = regexp.MustCompile(`^[A-Za-z0-9_]{16,128}$`)
)

func parse(config, secrets json.RawMessage, o wire.Operator) (settings, error) {
	f := form.Form{Noun: "an Amazon SES provider"}
	s := settings{most: wire.DefaultMost}
	seconds, endpoint := defaultTimeout, ""
	f.Object("/config", config, map[string]any{"region": &s.region, "endpoint": &endpoint,
		"configuration_set": &s.configurationSet, "topic_arn": &s.topic, "max_requests": &s.most, "timeout_seconds": &seconds})
	f.Object("/secrets", secrets, map[string]any{
		"access_key_id": &s.accessKeyID, "secret_access_key": &s.secretKey, "session_token": &s.sessionToken})
	s.timeout = time.Duration(seconds) * time.Second
	if f.OK() {
		s.endpoint = server(&f, s.region, endpoint, o)
		s.check(&f, seconds)
	}
	return s, f.Err()
}

func (s settings) check(f *form.Form, seconds int) {
	if !regions.MatchString(s.region) {
		f.Fault("/config/region", "invalid_region", "must be an AWS region, such as eu-central-1")
	}
	if s.configurationSet != "" && !setName.MatchString(s.configurationSet) {
		f.Fault("/config/configuration_set", "invalid_name", "must be 1 to 64 letters, digits, hyphens and underscores")
	}
	s.checkTopic(f)
	wire.CheckNumbers(f, s.most, seconds)
	if !keyID.MatchString(s.accessKeyID) {
		f.Fault("/secrets/access_key_id", "required", "must be the id of an access key of AWS")
	}
	if s.secretKey == "" || len(s.secretKey) > 256 {
		f.Fault("/secrets/secret_access_key", "required", "must be the secret access key of access_key_id")
	}
}

// checkTopic accepts a topic only with a configuration set: without one, events have no
// tags.
func (s settings) checkTopic(f *form.Form) {
	if s.topic == "" {
		return
	}
	if _, ok := sns.ParseTopic(s.topic); !ok {
		f.Fault("/config/topic_arn", "invalid_name", "must be the ARN of a standard topic of Amazon SNS")
	} else if s.configurationSet == "" {
		f.Fault("/config/configuration_set", "required", "events of a topic need a configuration set")
	}
}

// server is the URL of a region's endpoint, or the one that the settings name: a VPC or
// FIPS endpoint.
func server(f *form.Form, region, endpoint string, o wire.Operator) *url.URL {
	if endpoint == "" {
		domain := ".amazonaws.com"
		if strings.HasPrefix(region, "cn-") {
			domain += ".cn"
		}
		return &url.URL{Scheme: "https", Host: "email." + region + domain}
	}
	return o.Server(f, "/config/endpoint", endpoint)
}

// Moves returns the endpoint when it changes: the session token is sent there.
var Moves = wire.Moves("endpoint", parse, func(old, next settings) bool {
	return wire.HostOf(old.endpoint) == wire.HostOf(next.endpoint) || old.region != next.region && isAWS(old) && isAWS(next)
})

// isAWS reports that an endpoint is the one of its region.
func isAWS(s settings) bool {
	return wire.HostOf(s.endpoint) == server(&form.Form{}, s.region, "", wire.Operator{}).Host
}

// Warnings lists what a config lacks that receives no events.
func Warnings(config json.RawMessage) []string {
	s, _ := parse(config, nil, wire.Operator{AllowPrivate: true}) // Check reports its faults
	switch {
	case s.configurationSet == "":
		return []string{"without a configuration set, Amazon SES reports no bounces and complaints with Lemma's tags; set configuration_set"}
	case s.topic == "":
		return []string{"without topic_arn, Lemma does not receive the bounces and complaints that Amazon SES reports"}
	}
	return nil
}
