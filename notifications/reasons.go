package notifications

// Reasons for which a recipient is not written to although a notification
// waits: it waited for long, and its audience was read again before the call.
// The API documents the list.
const (
	UnsubscribedSince = "unsubscribed_since" // the audience's opted-out column is true now
	LeftAudience      = "left_audience"      // the audience does not have the profile any more
	AddressChanged    = "address_changed"    // the audience has the profile with another address
)
