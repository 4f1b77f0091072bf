package links

// LookupPause is for tests.
const LookupPause = lookupPause
