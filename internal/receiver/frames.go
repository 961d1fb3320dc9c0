package receiver

import "github.com/pd-tools/pd-tools/wire"

// maxFrames bounds the frames of one message: its identity, what a device on
// the way or the peer puts before the delimiter, the delimiter, the payload.
const maxFrames = 16

// maxEnvelope bounds the bytes that go back with the answer. They are kept
// while the answer waits.
const maxEnvelope = 4096

// envelope is the tag of a message: the frames that go back before the answer.
type envelope struct {
	sender string   // ROUTER identity, the first frame
	frames [][]byte // identity and all up to and including the empty delimiter
	mark   []byte   // of a message in one frame: what goes back before the answer in its frame
}

// open splits a message as it came from the ROUTER. Without an empty frame the
// message is identity and payload and the answer has no delimiter either; the
// payload may begin with a mark then, and so does the answer. What
// cannot be split has a fault, and an envelope all the same: its sender must
// not hang.
func open(frames [][]byte) (env *envelope, payload []byte, fault string) {
	end := 1 // of the envelope
	for i := 1; i < len(frames); i++ {
		if len(frames[i]) == 0 {
			end = i + 1
			break
		}
	}
	env = &envelope{sender: string(frames[0]), frames: frames[:end:end]}
	switch rest := frames[end:]; {
	case len(rest) == 0:
		return env, nil, "message has no payload"
	case len(rest) > 1:
		return env, nil, "payload has more than one frame"
	case env.size() > maxEnvelope:
		return env, nil, "frames before the payload are too long"
	case end == 1:
		env.mark, payload = wire.CutMark(rest[0])
		return env, payload, ""
	default:
		return env, rest[0], ""
	}
}

func (e *envelope) size() int {
	n := len(e.mark)
	for _, f := range e.frames {
		n += len(f)
	}
	return n
}
