package plan

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"
)

// The picture, in pixels.
const (
	width, height             = 860, 480
	left, right, top, bottom  = 70, 190, 40, 56
	plotWidth                 = width - left - right
	plotHeight                = height - top - bottom
	leastWait                 = time.Millisecond // what is less stands on the lowest line
	tickLength, radius, title = 5, 4, 16
)

// Colours that people who confuse some can tell apart.
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000"}

// Plot draws admission wait, p99, against buffer size as SVG, both to a
// logarithmic scale, one line a policy. A point is hollow where some were not
// served: they timed out, were too large, or lost their sender.
func Plot(w io.Writer, results []Result) error {
	if len(results) == 0 {
		return nil
	}
	p := newPlot(results)
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, height)
	fmt.Fprintf(&p.b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	p.text(left, top-title, "start", "Admission wait, p99, against buffer size")
	p.axes()
	for i, policy := range p.policies {
		p.line(i, policy, results)
	}
	y := top + title*(len(p.policies)+1)
	fmt.Fprintf(&p.b, `<circle cx="%d" cy="%d" r="%d" fill="#fff" stroke="#444"/>`+"\n", width-right+26, y, radius)
	p.text(width-right+44, y+4, "start", "some not served")
	p.b.WriteString("</svg>\n")
	_, err := io.WriteString(w, p.b.String())
	return err
}

type plot struct {
	b        strings.Builder
	policies []Policy // in the order in which they come
	sizes    []Result // one a buffer size
	low      float64  // logarithms of the smallest and the largest buffer
	high     float64
	most     float64 // decades of wait
}

func newPlot(results []Result) *plot {
	p := &plot{low: math.Inf(1), high: math.Inf(-1), most: 1}
	policies, sizes := map[Policy]bool{}, map[int]bool{}
	for _, r := range results {
		if !policies[r.Policy] {
			policies[r.Policy] = true
			p.policies = append(p.policies, r.Policy)
		}
		if !sizes[r.Slots] {
			sizes[r.Slots] = true
			p.sizes = append(p.sizes, r)
		}
		p.low, p.high = min(p.low, math.Log2(float64(r.Bytes))), max(p.high, math.Log2(float64(r.Bytes)))
		p.most = max(p.most, math.Ceil(decades(r.Wait.P99)))
	}
	if p.low == p.high {
		p.low, p.high = p.low-1, p.high+1
	}
	return p
}

func decades(d time.Duration) float64 {
	return math.Log10(float64(max(d, leastWait)) / float64(leastWait))
}

func (p *plot) x(bytes int64) int {
	return left + int(math.Round((math.Log2(float64(bytes))-p.low)/(p.high-p.low)*plotWidth))
}

func (p *plot) y(wait time.Duration) int {
	return top + plotHeight - int(math.Round(decades(wait)/p.most*plotHeight))
}

func (p *plot) text(x, y int, anchor, text string) {
	fmt.Fprintf(&p.b, `<text x="%d" y="%d" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(text))
}

func (p *plot) segment(x1, y1, x2, y2 int, colour string) {
	fmt.Fprintf(&p.b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

func (p *plot) axes() {
	for i, wait := 0.0, leastWait; i <= p.most; i, wait = i+1, wait*10 {
		label := Time(wait)
		if wait == leastWait {
			label = "to 1ms"
		}
		p.segment(left-tickLength, p.y(wait), left+plotWidth, p.y(wait), "#ddd")
		p.text(left-2*tickLength, p.y(wait)+4, "end", label)
	}
	base, lastX := top+plotHeight, -width
	for _, r := range p.sizes {
		x := p.x(r.Bytes)
		p.segment(x, base, x, base+tickLength, "#444")
		if x-lastX >= 60 || lastX > x {
			p.text(x, base+20, "middle", Size(r.Bytes))
			p.text(x, base+36, "middle", fmt.Sprintf("%d slots", r.Slots))
			lastX = x
		}
	}
	p.segment(left, base, left+plotWidth, base, "#444")
	p.segment(left, top, left, base, "#444")
}

func (p *plot) line(i int, policy Policy, results []Result) {
	colour := colours[i%len(colours)]
	var points, marks strings.Builder
	for _, r := range results {
		if r.Policy != policy {
			continue
		}
		fill := colour
		if r.Ready < r.Requests {
			fill = "#fff"
		}
		x, y := p.x(r.Bytes), p.y(r.Wait.P99)
		fmt.Fprintf(&points, "%d,%d ", x, y)
		fmt.Fprintf(&marks, `<circle cx="%d" cy="%d" r="%d" fill="%s" stroke="%s"><title>%v, %s: p99 %s, %d of %d ready</title></circle>`+"\n",
			x, y, radius, fill, colour, policy, Size(r.Bytes), Time(r.Wait.P99), r.Ready, r.Requests)
	}
	fmt.Fprintf(&p.b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(points.String()), colour)
	p.b.WriteString(marks.String())
	y := top + title*i
	p.segment(width-right+14, y, width-right+38, y, colour)
	p.text(width-right+44, y+4, "start", policy.String())
}
