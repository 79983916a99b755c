// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// packer writes spans as bytes: in maps and strings a span takes five times the
// memory, which the garbage collector has to walk. It learns the names of
// attributes, of which there are few, and writes their numbers. A span that was
// packed is unpacked by the same packer. It is not safe for concurrent use.
type packer struct {
	numbers map[string]uint64
	names   []string
	scratch []byte
}

// maxScratch bounds the room that is kept for writing.
const maxScratch = 64 << 10

// maxNames bounds what is learned: exporters name attributes as they like.
const maxNames = 1000

func newPacker() *packer { return &packer{numbers: map[string]uint64{}} }

// pack writes everything of a span but its identifiers and its start.
func (p *packer) pack(s *Span) []byte {
	b := p.name(p.scratch[:0], s.Name)
	b = binary.AppendVarint(b, s.End.UnixNano()-s.Start.UnixNano())
	b = text(b, s.Error)
	b = p.attrs(b, s.Attrs)
	b = binary.AppendUvarint(b, uint64(len(s.Events)))
	for _, e := range s.Events {
		b = p.name(b, e.Name)
		b = binary.AppendVarint(b, e.Time.UnixNano()-s.Start.UnixNano())
		b = p.attrs(b, e.Attrs)
	}
	return p.exactly(b)
}

// packLocal is pack for a span of this process, with all that ended below it. It
// says how many spans that are.
func (p *packer) packLocal(s *localSpan) (packed []byte, spans int) {
	b := p.local(p.scratch[:0], s)
	b, spans = p.steps(b, s, s.start)
	return p.exactly(b), spans + 1
}

// steps writes the steps below a span, each with its identifiers and when it began.
func (p *packer) steps(b []byte, s *localSpan, began time.Time) (packed []byte, n int) {
	for _, step := range s.steps {
		id := step.context.SpanID()
		b = append(append(b, id[:]...), step.parent[:]...)
		b = p.local(binary.AppendVarint(b, int64(step.start.Sub(began))), step)
		var below int
		b, below = p.steps(b, step, began)
		n += 1 + below
	}
	return b, n
}

func (p *packer) local(b []byte, s *localSpan) []byte {
	b = p.name(b, s.name)
	b = binary.AppendVarint(b, s.end.UnixNano()-s.start.UnixNano())
	b = text(b, s.err)
	b = p.pairs(b, s.attrs)
	b = binary.AppendUvarint(b, uint64(len(s.events)))
	for _, e := range s.events {
		b = p.name(b, e.name)
		b = binary.AppendVarint(b, e.at.UnixNano()-s.start.UnixNano())
		b = p.pairs(b, e.attrs)
	}
	return b
}

// exactly copies what was written into the scratch into as many bytes.
func (p *packer) exactly(b []byte) []byte {
	if p.scratch = b[:0]; cap(b) > maxScratch {
		p.scratch = nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

func (p *packer) pairs(b []byte, attrs []pair) []byte {
	b = binary.AppendUvarint(b, uint64(len(attrs))+1)
	for i := range attrs {
		b = text(p.name(b, attrs[i].key), attrs[i].value)
	}
	return b
}

func (p *packer) attrs(b []byte, m map[string]string) []byte {
	if m == nil {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(m))+1)
	for k, v := range m {
		b = text(p.name(b, k), v)
	}
	return b
}

// name writes the number of a name, or 0 and the name itself.
func (p *packer) name(b []byte, name string) []byte {
	n, ok := p.numbers[name]
	if !ok && len(p.names) < maxNames && len(name) < 64 {
		p.names = append(p.names, name)
		n, ok = uint64(len(p.names)), true
		p.numbers[name] = n
	}
	if !ok {
		return text(append(b, 0), name)
	}
	return binary.AppendUvarint(b, n)
}

func text(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// unpack fills what pack wrote into a span that has its start. It answers what
// packLocal wrote behind it.
func (p *packer) unpack(packed []byte, s *Span) (rest []byte) {
	r := reader{packer: p, rest: packed}
	s.Name = r.name()
	s.End = s.Start.Add(r.duration())
	s.Error = r.text()
	s.Attrs = r.attrs()
	if n := r.number(); n > 0 {
		s.Events = make([]SpanEvent, n)
		for i := range s.Events {
			s.Events[i].Name = r.name()
			s.Events[i].Time = s.Start.Add(r.duration())
			s.Events[i].Attrs = r.attrs()
		}
	}
	return r.rest
}

// unpackSteps reads the steps that packLocal wrote behind a span.
func (p *packer) unpackSteps(packed []byte, above *Span) (out []Span) {
	for len(packed) > 0 {
		r := reader{packer: p, rest: packed}
		s := Span{Trace: above.Trace, ID: r.id(), Parent: r.id()}
		s.Start = above.Start.Add(r.duration())
		packed = p.unpack(r.rest, &s)
		out = append(out, s)
	}
	return out
}

// reader reads what its packer wrote.
type reader struct {
	packer *packer
	rest   []byte
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.rest = r.rest[size:]
	return n
}

func (r *reader) duration() time.Duration {
	n, size := binary.Varint(r.rest)
	r.rest = r.rest[size:]
	return time.Duration(n)
}

func (r *reader) id() string {
	id := oteltrace.SpanID(r.rest[:8])
	r.rest = r.rest[8:]
	return id.String()
}

func (r *reader) text() string {
	n := r.number()
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *reader) name() string {
	if n := r.number(); n > 0 {
		return r.packer.names[n-1]
	}
	return r.text()
}

func (r *reader) attrs() map[string]string {
	n := r.number()
	if n == 0 {
		return nil
	}
	m := make(map[string]string, n-1)
	for range n - 1 {
		k := r.name()
		m[k] = r.text()
	}
	return m
}
