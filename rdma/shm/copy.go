package shm

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// store copies src to dst, of the same length, in shared memory. A fault there
// is an error, not the end of the process.
func store(dst, src []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = faultError(r)
		}
	}()
	streamCopy(dst, src)
	return nil
}

// faultError makes an error of a recovered memory fault; another panic goes on.
func faultError(r any) error {
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	return fmt.Errorf("memory fault at %#x", fault.Addr())
}
