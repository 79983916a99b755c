// SPDX-License-Identifier: Apache-2.0

package wasmplane

// Patch is changes to an object, in their order. Paths begin at the object's root
// ("/metadata/labels/team"); see Token for keys with slashes. What an admission hook
// changes goes further than a JSON patch: an Add makes what is missing on the way,
// "/spec/containers/[name=web]" finds an item by key, and a path may begin with an alias ("/@podMeta/labels").
type Patch struct{ ops []byte }

// Add puts a value at a path.
func (p *Patch) Add(path string, value any) { p.change("add", path, value) }

// Replace replaces a value that is there.
func (p *Patch) Replace(path string, value any) { p.change("replace", path, value) }

// Remove removes a value that is there.
func (p *Patch) Remove(path string) { p.change("remove", path, nil) }

// Move takes a value from one path to another.
func (p *Patch) Move(from, path string) {
	p.change("move", path, nil)
	p.ops = append(appendString(append(p.ops[:len(p.ops)-1], `,"from":`...), from), '}')
}

// Test makes the whole patch fail where another value is there.
func (p *Patch) Test(path string, value any) { p.change("test", path, value) }

func (p *Patch) change(op, path string, value any) {
	if len(p.ops) > 0 {
		p.ops = append(p.ops, ',')
	}
	p.ops = append(append(p.ops, `{"op":"`...), op...)
	p.ops = appendString(append(p.ops, `","path":`...), path)
	if op != "remove" && op != "move" {
		p.ops = appendValue(append(p.ops, `,"value":`...), value)
	}
	p.ops = append(p.ops, '}')
}

func (p *Patch) append(b []byte) []byte {
	return append(append(append(b, '['), p.ops...), ']')
}
