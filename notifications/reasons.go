package notifications

// Reasons why a waiting recipient is skipped after their audience was read again
// before the call. The API documents the list.
const (
	UnsubscribedSince = "unsubscribed_since" // the opted-out column of the audience is true now
	LeftAudience      = "left_audience"      // the profile is not in the audience any more
	Suppressed        = "suppressed"         // the address is suppressed; the detail is the cause
	AddressChanged    = "address_changed"    // the profile has another address in the audience
)
