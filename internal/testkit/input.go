package testkit

// Input is a fuzzer's bytes, from which a test decides what happens next.
type Input []byte

// Byte takes the next one; zero at the end.
func (in *Input) Byte() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

// Bytes takes the next n, or what is left.
func (in *Input) Bytes(n int) []byte {
	n = min(n, len(*in))
	b := (*in)[:n:n]
	*in = (*in)[n:]
	return b
}
