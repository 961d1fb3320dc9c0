package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/pebbe/zmq4"
)

// correlation is the first frame of a request: which of a client's places it
// belongs to, and how many bytes the echo is to answer. A receiver carries it
// back without a look.
const correlationLen = 8

func correlation(place, answer int) []byte {
	c := make([]byte, correlationLen)
	binary.LittleEndian.PutUint32(c, uint32(place))
	binary.LittleEndian.PutUint32(c[4:], uint32(answer))
	return c
}

func placeOf(c []byte) int  { return int(binary.LittleEndian.Uint32(c)) }
func answerOf(c []byte) int { return int(binary.LittleEndian.Uint32(c[4:])) }

// maxAnswer is more than any answer of the runs has, bytes.
const maxAnswer = 64 << 10

// echo is the reference of the control plane: the least a server can do with
// this library that takes [identity, correlation, "", payload] and answers as
// many bytes as it is asked for.
func echo(stdin io.Reader, stdout io.Writer) error {
	s, err := zmq4.NewSocket(zmq4.ROUTER)
	if err != nil {
		return err
	}
	if err := s.Bind("tcp://127.0.0.1:*"); err != nil {
		return err
	}
	endpoint, err := s.GetLastEndpoint()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "{\"endpoint\":%q}\n", endpoint)
	go func() {
		io.Copy(io.Discard, stdin)
		os.Exit(0)
	}()
	answer := make([]byte, maxAnswer)
	for {
		frames, err := s.RecvMessageBytes(0)
		if err != nil {
			return err
		}
		if len(frames) != 4 || len(frames[1]) != correlationLen {
			return fmt.Errorf("echo: message of %d frames", len(frames))
		}
		last := len(frames) - 1
		for _, f := range frames[:last] {
			if _, err := s.SendBytes(f, zmq4.SNDMORE); err != nil {
				return err
			}
		}
		if _, err := s.SendBytes(answer[:answerOf(frames[1])], 0); err != nil {
			return err
		}
	}
}
