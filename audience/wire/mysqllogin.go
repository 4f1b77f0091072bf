package wire

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
)

// readGreeting reads the first packet of a server, with its header. It is a greeting
// or an error packet.
func readGreeting(r io.Reader) ([]byte, error) {
	greeting := make([]byte, 4, 4+256)
	if _, err := io.ReadFull(r, greeting); err != nil {
		return nil, err
	}
	length := int(greeting[0]) | int(greeting[1])<<8 | int(greeting[2])<<16
	if length == 0 || length > maxLoginPacket {
		return nil, fmt.Errorf("%w: a greeting of %d bytes", ErrMalformed, length)
	}
	greeting = append(greeting, make([]byte, length)...)
	_, err := io.ReadFull(r, greeting[4:])
	return greeting, err
}

// checkGreeting returns the capabilities of a greeting (protocol::HandshakeV10, since
// MySQL 4.1). It refuses greetings on which the driver would panic.
func checkGreeting(body []byte) (capabilities uint32, err error) {
	if body[0] == 0xff {
		return 0, checkError(body)
	}
	end := bytes.IndexByte(body, 0)
	const fixed = 4 + 8 + 1 + 2 + 1 + 2 + 2 + 1 + 6 + 4 // up to the second part of the salt
	if body[0] < 10 || end < 0 || len(body) < end+1+fixed+13 {
		return 0, fmt.Errorf("%w: its greeting is not one of MySQL", ErrMalformed)
	}
	rest := body[end+1+4+8+1:]
	capabilities = uint32(binary.LittleEndian.Uint16(rest)) | uint32(binary.LittleEndian.Uint16(rest[5:]))<<16
	if capabilities&clientProtocol41 == 0 {
		return 0, Refusal("the source has an old protocol")
	}
	return capabilities, nil
}

// checkLogin checks the lengths of packets between the greeting and the first
// command, which the driver does not check.
func (w *MySQL) checkLogin(body []byte) error {
	switch body[0] {
	case 0x00:
		return checkSuccess(body)
	case 0xff:
		return checkError(body)
	case 0x01:
		return w.checkMore(body[1:])
	case 0xfe:
		return checkSwitch(body)
	}
	return fmt.Errorf("%w: the response to a login is packet %#x", ErrMalformed, body[0])
}

func checkSuccess(body []byte) error {
	at := 1
	for range 2 { // rows, last id
		_, size, ok := lengthEncoded(body[at:])
		if !ok {
			return fmt.Errorf("%w: its report of success is cut", ErrMalformed)
		}
		at += size
	}
	if len(body) < at+2 {
		return fmt.Errorf("%w: its report of success is cut", ErrMalformed)
	}
	return nil
}

func checkError(body []byte) error {
	if len(body) < 4 || body[3] == '#' && len(body) < 9 {
		return fmt.Errorf("%w: its report of an error is cut", ErrMalformed)
	}
	return nil
}

// checkSwitch checks a change of the method of login: its name, and a salt.
func checkSwitch(body []byte) error {
	if len(body) == 1 {
		return nil // the method before 4.1, which the driver refuses
	}
	end := bytes.IndexByte(body, 0)
	if end < 0 || string(body[1:end]) == "mysql_native_password" && len(body) < end+1+20 {
		return fmt.Errorf("%w: its change of the login method is cut", ErrMalformed)
	}
	return nil
}

const fastLogin = "\x03" // of caching_sha2_password: the server knows the password's hash

// checkMore checks further data of a login method: one byte, or an RSA key. All but fastLogin
// request the password. Without TLS the driver would encrypt it with the key that the server
// sends, which can be that of another machine.
func (w *MySQL) checkMore(data []byte) error {
	if !w.socket && !w.Encrypted() && string(data) != fastLogin {
		return Refusal("the source requests the password, which is not sent without TLS: enable TLS at the source and in its DSN")
	}
	return checkKey(data)
}

// checkKey checks that a key is an RSA key of a valid size.
func checkKey(data []byte) error {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil // the driver returns an error
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil //nolint:nilerr // the driver returns an error
	}
	public, ok := key.(*rsa.PublicKey)
	if !ok || public.N.BitLen() > 16384 {
		return fmt.Errorf("%w: its key is not an RSA key of a usual size", ErrMalformed)
	}
	return nil
}

// mysqlPrepare collects the columns of a statement from the response to
// COM_STMT_PREPARE: success with two counts, the parameters, the columns.
type mysqlPrepare struct {
	begun      bool
	counted    bool
	parameters int
	missing    int // columns
	columns    []Column
}

func (p *mysqlPrepare) collecting() bool {
	return p != nil && p.begun && (!p.counted || p.parameters > 0 || p.missing > 0)
}

// collected is true for what follows the columns: a packet that marks their end.
func (p *mysqlPrepare) collected() bool { return p != nil && p.begun && !p.collecting() }

func (p *mysqlPrepare) take(body []byte) error {
	switch {
	case !p.counted:
		return p.count(body)
	case body[0] == 0xfe && len(body) < 9: // the end of a list, from servers that mark it
		return nil
	case p.parameters > 0:
		p.parameters--
		return nil
	}
	column, err := readColumn(body)
	p.missing--
	p.columns = append(p.columns, column)
	return err
}

func (p *mysqlPrepare) count(body []byte) error {
	p.counted = true
	if body[0] != 0x00 {
		return nil // an error, which the driver reads
	}
	if len(body) < 9 {
		return fmt.Errorf("%w: its answer to a statement is cut", ErrMalformed)
	}
	p.missing, p.parameters = int(binary.LittleEndian.Uint16(body[5:])), int(binary.LittleEndian.Uint16(body[7:]))
	if p.missing > maxResultColumn {
		return fmt.Errorf("%w: a result of %d columns", ErrMalformed, p.missing)
	}
	return nil
}
