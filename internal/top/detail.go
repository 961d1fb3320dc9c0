package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/pd-tools/pd-tools/wire"
)

const detailEvents = 10

// detail is the screen of one request. It keeps what was last known, so that
// the end of the request can be read.
type detail struct {
	src   int
	id    string
	recv  *wire.SnapshotRequest
	slots *wire.Snapshot // in which recv was
	send  *wire.SenderRequest
	links *wire.SenderSnapshot
	proxy *wire.ProxyRequest
	queue *wire.SnapshotWaiter
	live  bool
	seen  time.Time // when it was last live, by the source's clock
	rate  float64   // bytes a second; below 0: not known
	off   int
}

func (m *Model) detailOf(src int, id string) *detail {
	d := &detail{src: src, id: id}
	d.follow(m)
	return d
}

// follow looks the request up in what is shown now.
func (d *detail) follow(m *Model) {
	if d == nil {
		return
	}
	f := m.view(d.src).frame
	if f == nil {
		return
	}
	d.live, d.rate = false, -1
	if f.rates.known {
		d.rate = f.reqRate[d.id]
	}
	switch {
	case f.recv != nil:
		if i := slices.IndexFunc(f.recv.Requests, func(r wire.SnapshotRequest) bool { return r.ReqID == d.id }); i >= 0 {
			d.recv, d.slots, d.live = &f.recv.Requests[i], f.recv, true
		}
		d.queue = nil
		if i := slices.IndexFunc(f.recv.Queue, func(q wire.SnapshotWaiter) bool { return q.ReqID == d.id }); i >= 0 {
			d.queue, d.live = &f.recv.Queue[i], true
		}
	case f.send != nil:
		if i := slices.IndexFunc(f.send.Requests, func(r wire.SenderRequest) bool { return r.ReqID == d.id }); i >= 0 {
			d.send, d.links, d.live = &f.send.Requests[i], f.send, true
		}
	default:
		if i := slices.IndexFunc(f.proxy.Waiting, func(r wire.ProxyRequest) bool { return r.ReqID == d.id }); i >= 0 {
			d.proxy, d.live = &f.proxy.Waiting[i], true
		}
	}
	if d.live {
		d.seen = f.life.time
	}
}

func (d *detail) key(msg tea.KeyMsg) {
	switch {
	case key.Matches(msg, keys.up):
		d.off = max(d.off-1, 0)
	case key.Matches(msg, keys.down):
		d.off++
	case key.Matches(msg, keys.pageUp):
		d.off = max(d.off-10, 0)
	case key.Matches(msg, keys.pageDown):
		d.off += 10
	case key.Matches(msg, keys.first):
		d.off = 0
	}
}

// lines draws all that is known of the request.
func (d *detail) lines(m *Model) []line {
	c := func(s string) string { return clean(s, m.opts.ASCII) }
	g := m.glyphs
	title := line{{g.strong + g.strong, plain}, {" REQUEST ", strong}}
	title = title.add(plain, strings.Repeat(g.strong, max(m.w-title.width(), 0)))
	lines := []line{title}
	for i, part := range split(c(d.id), max(m.w-12, 10)) {
		name := ""
		if i == 0 {
			name = "id"
		}
		lines = append(lines, field(name, part))
	}
	own := m.view(d.src).events
	var mine []*entry
	for i := len(own) - 1; i >= 0 && len(mine) < detailEvents; i-- {
		if own[i].req == d.id {
			mine = append(mine, &own[i])
		}
	}
	switch {
	case d.live:
	case d.seen.IsZero():
		lines = append(lines, field("state", "not there any more"))
	default:
		lines = append(lines, field("state", "ended after "+clock(d.seen)+"; this is the last that was seen of it"))
	}
	switch {
	case d.recv != nil:
		lines = append(lines, d.receiverLines(m, mine)...)
	case d.send != nil:
		lines = append(lines, d.senderLines(m)...)
	case d.proxy != nil:
		lines = append(lines, field("has", fmt.Sprintf("%s notifications, the first %s ago", commas(d.proxy.Notifs), whole(d.proxy.AgeMS))))
	}
	lines = append(lines, nil, line{{"its last events", strong}})
	if len(mine) == 0 {
		lines = append(lines, text("  none was seen"))
	}
	for _, e := range mine {
		l := line{{"  " + e.time.UTC().Format("15:04:05.000") + " ", faint}}
		if e.wire != nil {
			l = l.add(plain, c(eventWords(e.wire, m.units)))
		} else {
			l = l.add(bad, c(e.text))
		}
		lines = append(lines, l)
	}
	return lines
}

// bytesRate is a rate that may not be known.
func (m *Model) bytesRate(v float64) string {
	if v < 0 {
		return "-"
	}
	return m.units.bytes(v) + "/s"
}

func field(name, s string) line { return line{{pad(name, 12, true), strong}, {s, plain}} }

// split cuts clean text into pieces of at most w columns.
func split(s string, w int) []string {
	var parts []string
	for width(s) > w {
		h := head(s, w)
		if h == "" {
			break
		}
		parts = append(parts, h)
		s = s[len(h):]
	}
	return append(parts, s)
}

func (d *detail) receiverLines(m *Model, mine []*entry) []line {
	r, s := d.recv, d.slots
	c := func(t string) string { return clean(t, m.opts.ASCII) }
	f := &frame{recv: s}
	lines := []line{
		field("sender", c(r.Sender)),
		field("receiver", c(s.ID)+"  "+c(s.Endpoint)),
	}
	if d.live {
		st := m.stateOf(f, r)
		lines = append(lines, line{{pad("state", 12, true), strong}, {st.text, st.style}, {fmt.Sprintf("  age %s, idle %s", whole(r.AgeMS), whole(r.IdleMS)), plain}})
	}
	if d.queue != nil {
		by := ""
		if d.queue.AtShare {
			by = " by its sender, which is at its share"
		}
		lines = append(lines, field("waits", fmt.Sprintf("at position %s for %s slots, %s still to be freed%s, for %s", commas(d.queue.Pos), commas(d.queue.Need), commas(d.queue.Lacks), by, whole(d.queue.WaitedMS))))
	}
	lines = append(lines,
		field("chunks", fmt.Sprintf("%s declared, %s allocated, %s written, %s shared, %s", commas(r.TotalChunks), commas(r.Allocated), commas(r.Written), commas(r.Shared), m.units.bytes(float64(r.Bytes)))),
		field("rate", m.bytesRate(d.rate)),
		nil, line{{"timeline", strong}})
	lines = append(lines, m.timeline(r, mine)...)
	if res := reserved(s, r); res > 0 {
		lines = append(lines, nil, line{{"slots", strong}, {fmt.Sprintf("  # written %s  = allocated %s  . promised %s",
			commas(r.Written), commas(max(r.Allocated-r.Written, 0)), commas(max(res-r.Allocated, 0))), plain}})
		lines = append(lines, slotMap(r, res, m.w-4)...)
	}
	return lines
}

// step is one moment of a request's life.
type step struct {
	name string
	at   float64 // ms after its first batch
	note string
}

// timeline has the moments that are known, each with what lies between.
func (m *Model) timeline(r *wire.SnapshotRequest, mine []*entry) []line {
	steps := []step{{"queued", 0, "its first batch came"}}
	for _, s := range []step{
		{"granted", float64(r.AdmittedMS), "waited for admission"}, {"first write", float64(r.FirstWriteMS), ""},
		{"last write", float64(r.LastWriteMS), ""}, {"ready", float64(r.ReadyMS), ""},
	} {
		if s.at >= 0 {
			steps = append(steps, s)
		}
	}
	for _, e := range mine {
		if e.wire != nil && e.wire.TookMS > 0 && e.wire.Event != "ready" && e.wire.Event != "allocated" {
			steps = append(steps, step{e.wire.Event, e.wire.TookMS, e.wire.Reason})
			break
		}
	}
	var lines []line
	before := 0.0
	for i, s := range steps {
		l := text("  " + pad(head(clean(s.name, m.opts.ASCII), 12), 12, true) + pad("+"+millis(s.at), 10, false))
		if i > 0 {
			l = l.add(plain, pad(millis(max(s.at-before, 0)), 10, false)+" later")
		}
		if s.note != "" && (s.name != "granted" || s.at > 0) {
			l = l.add(faint, "  "+clean(s.note, m.opts.ASCII))
		}
		lines = append(lines, l)
		before = s.at
	}
	return lines
}

// slotMap draws a sign for each slot of the reservation, or for so many of
// them that it fits.
func slotMap(r *wire.SnapshotRequest, res, w int) []line {
	const most = 8 // lines
	w = max(w, 1)
	res = min(res, 1<<30)
	each := (res-1)/(w*most) + 1
	sign := func(slot int) byte {
		switch {
		case slot < r.Written:
			return '#'
		case slot < r.Allocated:
			return '='
		}
		return '.'
	}
	var b strings.Builder
	for i := 0; i < res; i += each {
		b.WriteByte(sign(min(i+each, res) - 1)) // the last of them to be written
	}
	var lines []line
	for _, part := range split(b.String(), w) {
		lines = append(lines, text("  "+part))
	}
	if each > 1 {
		lines = append(lines, line{{"  a sign is " + commas(each) + " slots", faint}})
	}
	return lines
}

func (d *detail) senderLines(m *Model) []line {
	r, s := d.send, d.links
	c := func(t string) string { return clean(t, m.opts.ASCII) }
	lines := []line{
		field("sender", c(s.ID)),
		field("receiver", c(linkName(s, r.Receiver))),
		field("state", fmt.Sprintf("%s  age %s", c(r.State), whole(r.AgeMS))),
		field("chunks", fmt.Sprintf("%s declared, %s sent, %s shared, %s", commas(r.TotalChunks), commas(r.Sent), commas(r.Shared), m.units.bytes(float64(r.Bytes)))),
	}
	if r.AdmittedMS >= 0 {
		lines = append(lines, field("admitted", "+"+whole(r.AdmittedMS)))
	}
	for i := range s.Staging.Blocked {
		if b := &s.Staging.Blocked[i]; b.ReqID == d.id {
			lines = append(lines, line{{pad("BLOCKED", 12, true), bad}, {fmt.Sprintf("%s chunks wait for staging, for %s", commas(b.Chunks), whole(b.WaitingMS)), plain}})
		}
	}
	return lines
}
