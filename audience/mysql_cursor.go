package audience

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// mysqlCursor is a result that the driver streams.
type mysqlCursor struct {
	session *mysqlSession
	rows    driver.Rows
	raw     []driver.Value
	scratch []byte // text forms of the numbers of one row
	count   int
}

func (c *mysqlCursor) next(dst [][]byte) (bool, error) {
	c.session.meter.Progress()
	err := c.rows.Next(c.raw)
	if errors.Is(err, io.EOF) {
		if !c.session.stream.Complete(c.count) {
			c.session.meter.Close() // what follows on the wire is unknown
			return false, malformed(fmt.Errorf("after %d rows: %w", c.count, err))
		}
		c.close() // otherwise the driver accepts no further query
		return false, nil
	}
	if err != nil {
		return false, c.session.fault(err)
	}
	if len(dst) != len(c.raw) {
		return false, changed("the source sent rows of %d columns instead of %d", len(c.raw), len(dst))
	}
	c.count++
	c.scratch = c.scratch[:0]
	for i, v := range c.raw {
		dst[i] = c.text(v)
	}
	return true, nil
}

// pause is true every thousand rows, since the server waits only for net_write_timeout.
func (c *mysqlCursor) pause() bool { return c.count%1000 == 0 }

// close reads the rest of a short result.
func (c *mysqlCursor) close() {
	if c.rows.Close() == nil {
		c.session.reading = false
	}
}

// text returns the text form of a number, in scratch. Earlier texts stay valid when scratch grows.
func (c *mysqlCursor) text(v driver.Value) []byte {
	from := len(c.scratch)
	switch v := v.(type) {
	case nil:
		return nil
	case []byte:
		return v
	case int64:
		c.scratch = strconv.AppendInt(c.scratch, v, 10)
	case uint64:
		c.scratch = strconv.AppendUint(c.scratch, v, 10)
	case float32:
		c.scratch = appendFloat(c.scratch, float64(v), 32)
	case float64:
		c.scratch = appendFloat(c.scratch, v, 64)
	case string:
		c.scratch = append(c.scratch, v...)
	case time.Time:
		c.scratch = v.AppendFormat(c.scratch, "2006-01-02 15:04:05.999999999")
	default:
		c.scratch = fmt.Append(c.scratch, v)
	}
	return c.scratch[from:len(c.scratch):len(c.scratch)]
}
