//go:build !noisal

package crc32c

// #cgo pkg-config: libisal
// #include <isa-l/crc.h>
import "C"

import "unsafe"

// ISAL says whether it is in use.
const ISAL = true

// update has a sum inverted, before and after, as ISA-L leaves that to its
// caller.
func update(sum uint32, p []byte) uint32 {
	return ^uint32(C.crc32_iscsi((*C.uchar)(unsafe.SliceData(p)), C.int(len(p)), C.uint(^sum)))
}
