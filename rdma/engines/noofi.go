//go:build noofi

package engines

var across []engine
