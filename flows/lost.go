package flows

import (
	"errors"

	"lemma"
	"lemma/pgerr"
)

// ofConnection recognizes an error of the connection to Lemma's own database, of which no
// enrollment is the cause. Postgres reports it with the classes 08 (connection), 53
// (resources) and 57P (shutdown, terminated); its other errors concern the statement.
func ofConnection(err error) bool {
	if errors.As(err, new(*lemma.Error)) { // such as one of a data source
		return false
	}
	return pgerr.Is(err, "08", "53", "57P") || pgerr.Disconnected(err)
}
