package door

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
)

// A token says which grant it is for and proves it:
//
//	kind (1 byte) | number of the grant (8) | secret (32)
//
// The number finds the grant, so that no secret is ever looked up, and the
// secret is compared in constant time. Numbers are little-endian.
const (
	secretLen = 32
	tokenLen  = 1 + 8 + secretLen
)

type kind byte

const (
	writing kind = 'w'
	reading kind = 'r'
)

// Hello is what somebody with a token says first.
func Hello(magic string, token []byte) ([]byte, error) {
	if len(token) != tokenLen {
		return nil, fmt.Errorf("token of %d bytes, the receiver's have %d", len(token), tokenLen)
	}
	return append([]byte(magic), token...), nil
}

type secret [secretLen]byte

func newSecret() (s secret) {
	rand.Read(s[:]) // never fails
	return s
}

func (s secret) token(k kind, number uint64) []byte {
	b := append(make([]byte, 0, tokenLen), byte(k))
	b = binary.LittleEndian.AppendUint64(b, number)
	return append(b, s[:]...)
}

func (s secret) equal(other []byte) bool { return subtle.ConstantTimeCompare(s[:], other) == 1 }

// splitToken takes a token of tokenLen bytes apart.
func splitToken(token []byte) (k kind, number uint64, secret []byte) {
	return kind(token[0]), binary.LittleEndian.Uint64(token[1:]), token[9:]
}
