// SPDX-License-Identifier: Apache-2.0

package link

import (
	leb "encoding/binary"
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// functionModule is the name under which core modules import functions of the canonical ABI.
const functionModule = "t"

func siteName(i int) string { return fmt.Sprintf("s%d", i) }

// Modules are the core modules of a program, in the order of instantiation, with their imports renamed, and without the
// data that Linked writes itself. They are not validated, and not metered.
func (p *Program) Modules() ([][]byte, error) {
	out := make([][]byte, len(p.sites))
	for i := range p.sites {
		var err error
		if out[i], err = rewire(p.sites[i].module, p.sites[i].wires, p.sites[i].data); err != nil {
			return nil, fmt.Errorf("core module of instance %d: %w", i, err)
		}
	}
	return out, nil
}

var errShort = errors.New("the import section ends early")

// rewire renames the imports of a module, and takes data out. The module's type has been read before, so that its imports
// are known to be well formed as far as they are followed here.
func rewire(wasm []byte, wires []ref, d *data) ([]byte, error) {
	out := append([]byte(nil), wasm[:8]...)
	for rest := wasm[8:]; len(rest) > 0; {
		id := rest[0]
		size, n, err := leb128.Unsigned(rest[1:], 32)
		if err != nil || uint64(len(rest)-1-n) < size {
			return nil, errShort
		}
		content := rest[1+n : 1+n+int(size)]
		rest = rest[1+n+int(size):]
		if id == 2 {
			renamed, err := renameImports(content, wires)
			if err != nil {
				return nil, err
			}
			content = renamed
		}
		if id == 11 && d != nil && d.early() {
			if content = d.section; content == nil {
				continue
			}
		}
		out = leb.AppendUvarint(append(out, id), uint64(len(content)))
		out = append(out, content...)
	}
	return out, nil
}

func renameImports(b []byte, wires []ref) ([]byte, error) {
	r := walker{b: b}
	n := r.number()
	if n != uint64(len(wires)) {
		return nil, fmt.Errorf("%d imports, of which %d are wired", n, len(wires))
	}
	out := leb.AppendUvarint(nil, n)
	for _, w := range wires {
		r.skip(r.number())
		r.skip(r.number())
		at := r.at
		r.description()
		if r.failed {
			return nil, errShort
		}
		module, name := functionModule, fmt.Sprint(w.function)
		if w.site >= 0 {
			module, name = siteName(w.site), w.name
		}
		for _, s := range []string{module, name} {
			out = append(leb.AppendUvarint(out, uint64(len(s))), s...)
		}
		out = append(out, b[at:r.at]...)
	}
	return out, nil
}

// walker skips through an import section.
type walker struct {
	b      []byte
	at     int
	failed bool
}

func (w *walker) number() uint64 {
	v, n, err := leb128.Unsigned(w.b[min(w.at, len(w.b)):], 64)
	if err != nil {
		w.failed = true
		return 0
	}
	w.at += n
	return v
}

func (w *walker) skip(n uint64) {
	if n > uint64(len(w.b)-min(w.at, len(w.b))) {
		w.failed = true
		return
	}
	w.at += int(n)
}

func (w *walker) description() {
	switch w.number() {
	case 0:
		w.number()
	case 1:
		w.skip(1)
		w.limits()
	case 2:
		w.limits()
	case 3:
		w.skip(2)
	default:
		w.failed = true
	}
}

func (w *walker) limits() {
	flags := w.number()
	w.number()
	if flags&1 != 0 {
		w.number()
	}
}

// Neutral is a core module with imports under names that every engine accepts, for validating it
// where it stands: empty names are allowed to modules in components.
func Neutral(m *binary.CoreModule) ([]byte, error) {
	wires := make([]ref, len(m.Type.Imports))
	for i := range wires {
		wires[i] = ref{site: -1, function: i}
	}
	return rewire(m.Bytes, wires, nil)
}
