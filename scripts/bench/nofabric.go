//go:build noofi

package main

var across []section
