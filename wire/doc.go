// Package wire has every message the tools exchange, its bytes and its limits.
// It knows nothing of sockets, of buffers or of what a message leads to.
//
// A message is a msgpack map: first "type" with the message's name, then its
// fields in the order in which the fields method lists them. Append writes
// what Python's msgspec writes for a tagged struct, byte for byte; Decode
// accepts and rejects what msgspec does (testdata/golden.json and
// testdata/tolerance.json), and nothing over the limits of limits.go.
//
// Start with messages.go for what there is, fields.go for how it lies on the
// wire, decode.go for how a message is read. The msgpack library writes and
// reads every value; strict.go refuses what the library would let pass (nil
// for 0, bin for str, counts that the message cannot hold).
package wire
