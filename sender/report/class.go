package report

import "lemma/events"

// addressCodes are the enhanced status codes (RFC 3463; RFC 7505 for 5.1.10) that report
// that the address does not work.
var addressCodes = map[string]bool{"5.1.0": true, "5.1.1": true, "5.1.2": true, "5.1.3": true, "5.1.6": true, "5.1.10": true, "5.2.1": true}

// Failure is the type of a failed delivery by the enhanced status code of the
// recipient's server:
//
//	5.1.0 to 5.1.3, 5.1.6, 5.1.10, 5.2.1   bounced       the address does not work
//	4.x.x, 5.2.2                           soft_bounced  the cause may pass, such as a full mailbox
//	other, none                            undelivered   policy, content, routing, unknown
func Failure(status string) events.Type {
	switch {
	case addressCodes[status]:
		return events.TypeBounced
	case status == "5.2.2", status != "" && status[0] == '4':
		return events.TypeSoftBounced
	}
	return events.TypeUndelivered
}
