package trace

import (
	"encoding/binary"
	"time"
)

// packer writes spans as bytes: in maps and strings a span takes five times the
// memory, which the garbage collector has to walk. It learns the names of
// attributes, of which there are few, and writes their numbers. A span that was
// packed is unpacked by the same packer. It is not safe for concurrent use.
type packer struct {
	numbers map[string]uint64
	names   []string
}

// maxNames bounds what is learned: exporters name attributes as they like.
const maxNames = 1000

func newPacker() *packer { return &packer{numbers: map[string]uint64{}} }

// pack writes everything of a span but its identifiers and its start.
func (p *packer) pack(s *Span) []byte {
	b := make([]byte, 0, 64+len(s.Name)+len(s.Error)+32*len(s.Attrs))
	b = p.name(b, s.Name)
	b = binary.AppendVarint(b, s.End.UnixNano()-s.Start.UnixNano())
	b = text(b, s.Error)
	b = p.attrs(b, s.Attrs)
	b = binary.AppendUvarint(b, uint64(len(s.Events)))
	for _, e := range s.Events {
		b = p.name(b, e.Name)
		b = binary.AppendVarint(b, e.Time.UnixNano()-s.Start.UnixNano())
		b = p.attrs(b, e.Attrs)
	}
	return append(make([]byte, 0, len(b)), b...)
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

// unpack fills what pack wrote into a span that has its start.
func (p *packer) unpack(packed []byte, s *Span) {
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
