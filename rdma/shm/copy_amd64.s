#include "textflag.h"

// func stream(dst, src *byte, blocks int)
//
// A block is four pages, and each turn of the loop copies one cache line of
// each: four streams of reads keep more lines on their way from memory than
// one.
TEXT ·stream(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

block:
	MOVQ $64, DX

line:
	MOVOU 0(SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVOU 4096(SI), X4
	MOVOU 4112(SI), X5
	MOVOU 4128(SI), X6
	MOVOU 4144(SI), X7
	MOVOU 8192(SI), X8
	MOVOU 8208(SI), X9
	MOVOU 8224(SI), X10
	MOVOU 8240(SI), X11
	MOVNTO X0, 0(DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	MOVOU 12288(SI), X0
	MOVOU 12304(SI), X1
	MOVOU 12320(SI), X2
	MOVOU 12336(SI), X3
	MOVNTO X4, 4096(DI)
	MOVNTO X5, 4112(DI)
	MOVNTO X6, 4128(DI)
	MOVNTO X7, 4144(DI)
	MOVNTO X8, 8192(DI)
	MOVNTO X9, 8208(DI)
	MOVNTO X10, 8224(DI)
	MOVNTO X11, 8240(DI)
	MOVNTO X0, 12288(DI)
	MOVNTO X1, 12304(DI)
	MOVNTO X2, 12320(DI)
	MOVNTO X3, 12336(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	DECQ DX
	JNE line

	ADDQ $12288, SI
	ADDQ $12288, DI
	DECQ CX
	JNE block

	// Streaming stores are not ordered with the stores that announce them.
	SFENCE
	RET
