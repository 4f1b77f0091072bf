package tracking

import (
	"net/http"
	"strings"
)

// Reasons why an open or click is a machine's. docs/concepts/tracking.md has their sources.
const (
	applePrivacy = "apple_privacy" // Apple Mail Privacy Protection loads images of all messages
	gmailProxy   = "gmail_proxy"
	yahooProxy   = "yahoo_proxy"
	prefetch     = "prefetch"      // a browser loads what a person may open later
	scanner      = "scanner"       // a program with its name in the user agent
	tooFast      = "too_fast"      // a click within fast after the message was sent
	severalLinks = "several_links" // clicks on two links of a message within together
	probedBefore = "probed_before" // a HEAD request of the same link precedes the click
	flood        = "flood"         // one of too many requests about the notification
)

// programs are parts of user agents of scanners, previews and libraries, in lower case.
var programs = []string{"bot", "crawler", "spider", "barracuda", "mimecast", "proofpoint", "ciscosecure", "ironport", "fortinet", "sophos",
	"symantec", "trendmicro", "zscaler", "virustotal", "safebrowsing", "urlscan", "headlesschrome", "phantomjs", "preview", "facebookexternal",
	"whatsapp", "skypeuripreview", "curl/", "wget/", "python-requests", "python-urllib", "aiohttp", "go-http-client", "apache-httpclient",
	"java/", "libwww-perl", "node-fetch", "axios/", "scrapy"}

// machineOf returns why a request is a machine's; empty: it does not show.
func machineOf(h http.Header, click bool) string {
	agent := h.Get("User-Agent")
	switch {
	case strings.Contains(agent, "GoogleImageProxy"):
		return gmailProxy
	case strings.Contains(agent, "YahooMailProxy"):
		return yahooProxy
	case agent == "Mozilla/5.0" && !click:
		return applePrivacy
	case agent == "" && click:
		return scanner
	}
	for _, name := range []string{"Sec-Purpose", "Purpose", "X-Purpose", "X-Moz"} {
		if strings.Contains(strings.ToLower(h.Get(name)), "prefetch") {
			return prefetch
		}
	}
	agent = strings.ReplaceAll(strings.ToLower(agent), "cubot", "") // a maker of phones
	for _, p := range programs {
		if strings.Contains(agent, p) {
			return scanner
		}
	}
	return ""
}
