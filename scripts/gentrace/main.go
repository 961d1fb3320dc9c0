// Gentrace writes a request trace in Mooncake's format: one JSON object a line
// with timestamp (ms), input_length and output_length (tokens), and hash_ids,
// one for each block of 512 tokens. Equal ids are shared prefixes. The same
// seed gives the same bytes.
//
//	go run ./scripts/gentrace --requests 300 | pd-send manifest
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
)

const (
	blockTokens = 512
	maxInput    = 120_000 // tokens
	maxOutput   = 2_000   // tokens
)

func main() {
	requests := flag.Int("requests", 300, "how many requests")
	seed := flag.Uint64("seed", 1, "another seed, another trace")
	rate := flag.Float64("rate", 3, "requests a second, by the timestamps")
	flag.Parse()
	if flag.NArg() > 0 || *requests < 0 || !(*rate > 0) {
		fmt.Fprintln(os.Stderr, "gentrace: no arguments, --requests from 0, --rate above 0")
		os.Exit(2)
	}
	if err := write(os.Stdout, *requests, *seed, *rate); err != nil {
		fmt.Fprintln(os.Stderr, "gentrace:", err)
		os.Exit(1)
	}
}

func write(w io.Writer, requests int, seed uint64, rate float64) error {
	out := bufio.NewWriter(w)
	g := &generator{rnd: rand.New(rand.NewPCG(seed, 0)), rate: rate}
	for range requests {
		out.Write(g.next())
	}
	return out.Flush() // bufio keeps the first error
}

// generator makes a trace of conversations, most of them one turn long. All
// begin with the same system prompt; a later turn begins with what the turn
// before it said.
type generator struct {
	rnd    *rand.Rand
	rate   float64
	ms     float64
	nextID int
	system []int  // blocks of the system prompt
	open   []turn // conversations that may go on, the oldest first
}

// turn is a conversation after its latest request.
type turn struct {
	blocks []int // full blocks of its input
	tokens int   // its input and output
}

func (g *generator) next() []byte {
	const keepOpen, systemBlocks, goesOn = 64, 1, 0.35
	if g.system == nil {
		g.system = g.fresh(nil, systemBlocks)
	}
	g.ms += g.rnd.ExpFloat64() * 1000 / g.rate
	before := turn{blocks: g.system, tokens: systemBlocks * blockTokens}
	if len(g.open) > 0 && g.rnd.Float64() < goesOn {
		i := g.rnd.IntN(len(g.open))
		before = g.open[i]
		g.open = append(g.open[:i], g.open[i+1:]...)
	}
	// Gives the quartiles of Mooncake's published conversation trace, nearly.
	input := min(before.tokens+g.logNormal(4_300, 1.25), maxInput)
	output := min(g.logNormal(350, 0.75), maxOutput)
	full, blocks := input/blockTokens, (input+blockTokens-1)/blockTokens
	ids := g.fresh(before.blocks, blocks)
	if input+output < maxInput {
		g.open = append(g.open, turn{blocks: ids[:full:full], tokens: input + output})
	}
	if len(g.open) > keepOpen {
		g.open = g.open[1:]
	}
	return appendRequest(nil, int(g.ms), input, output, ids)
}

// fresh returns shared, cut or continued with ids of its own to n.
func (g *generator) fresh(shared []int, n int) []int {
	ids := make([]int, 0, n)
	ids = append(ids, shared[:min(len(shared), n)]...)
	for len(ids) < n {
		ids = append(ids, g.nextID)
		g.nextID++
	}
	return ids
}

func (g *generator) logNormal(median, sigma float64) int {
	return 1 + int(median*math.Exp(sigma*g.rnd.NormFloat64()))
}

func appendRequest(b []byte, ms, input, output int, ids []int) []byte {
	b = fmt.Appendf(b, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [`, ms, input, output)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, "]}\n"...)
}
