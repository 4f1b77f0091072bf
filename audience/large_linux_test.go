package audience

import (
	"fmt"
	"testing"
)

func TestRowsOfMariaDBThatAreTooLarge(t *testing.T) {
	t.Parallel()
	b, _ := mariadbShop(t, dev)
	testLargeRows(t, b, fmt.Sprintf(largeRows, "repeat('x', size)", "0 = 1", "1 = 1"))
}
