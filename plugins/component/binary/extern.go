// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/bytereader"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

var suffix = regexp.MustCompile(`^[0-9A-Za-z.+-]*$`)

// readExternName reads a name with its attributes. It says whether one of them is "implements".
func readExternName(r *bytereader.Reader) (ctype.Name, bool, error) {
	form := r.Byte()
	if form > 2 && r.Err == nil {
		r.Invalid(form, "component name")
	}
	text := r.Name()
	if r.Err != nil {
		return ctype.Name{}, false, r.Err
	}
	n, err := ctype.ParseName(text)
	if err != nil || form != 2 {
		return n, false, err
	}
	seen := [3]bool{}
	for left := r.Count("attributes of a name", 3); left > 0 && r.Err == nil; left-- {
		kind := r.Byte()
		if kind > 2 && r.Err == nil {
			r.Invalid(kind, "name option")
		}
		value := r.Name()
		if r.Err != nil {
			break
		}
		if seen[kind] {
			return n, false, fmt.Errorf("duplicate '%s' option in name", [...]string{"implements", "versionsuffix", "external-id"}[kind])
		}
		seen[kind] = true
		if err := checkAttribute(&n, kind, value); err != nil {
			return n, false, err
		}
	}
	return n, seen[0], r.Err
}

func checkAttribute(n *ctype.Name, kind byte, value string) error {
	switch kind {
	case 0:
		of, err := ctype.ParseName(value)
		if err != nil || !of.Interface {
			return fmt.Errorf("`%s` must be an interface", value)
		}
		if n.Interface || n.Annotation != "" {
			return fmt.Errorf("name `%s` is not valid with `implements`", n.Text)
		}
	case 1:
		if !suffix.MatchString(value) || n.Version == "" {
			return fmt.Errorf("`%s` is not a valid suffix of the version of `%s`", value, n.Text)
		}
	}
	return nil
}

// checkVisible refuses an import or export whose types others could not name.
//
// Who exports a type gives it a name; a function that was made before with the same type may then be
// exported too, which is more than the specification allows: for it, the exported type is another index.
// The type of an instance is checked where it is used.
func (s *scope) checkVisible(what string, e ctype.Extern) error {
	if s.kind == ofInstanceType {
		return nil
	}
	in := []*ctype.Names{s.imports}
	if what == "export" {
		in = append(in, s.exports)
	}
	ok, err := s.set.Visible(e, in...)
	if ok || err != nil {
		return err
	}
	return fmt.Errorf("%s not valid to be used as %s: a record, variant, enum, flags or resource in it is neither imported nor exported before", e.Sort, what)
}

// introduce checks the name and the visibility of an import or export, and adds it.
func (s *scope) introduce(what string, name *ctype.Name, implements bool, e ctype.Extern) error {
	if implements && e.Sort != ctype.Instances {
		return fmt.Errorf("only instances can have an `implements`")
	}
	n := s.imports
	if what == "export" {
		n = s.exports
	}
	if err := n.Add(what, name, e); err != nil {
		return err
	}
	if e.Sort == ctype.Instances {
		if err := s.weigh(e.Instance); err != nil {
			return err
		}
	}
	if err := s.checkVisible(what, e); err != nil {
		return fmt.Errorf("%s `%s`: %w", what, name.Text, err)
	}
	n.Show(e)
	named := ctype.Named{Name: name.Text, Extern: e}
	if what == "export" {
		s.typ.Exports = append(s.typ.Exports, named)
	} else {
		s.typ.Imports = append(s.typ.Imports, named)
	}
	return s.add(e)
}

func (s *scope) readImport(r *bytereader.Reader) error {
	name, implements, err := readExternName(r)
	if err != nil {
		return err
	}
	e, err := s.readExtern(r, &s.typ.Open, name.Text)
	if err != nil {
		return fmt.Errorf("import `%s`: %w", name.Text, err)
	}
	if e.Sort == ctype.Funcs && e.Func.Async {
		return fmt.Errorf("import `%s`: asynchronous functions are not supported: %s", name.Text, howSync)
	}
	s.defs = append(s.defs, &Import{Name: name.Text, Extern: e})
	return s.introduce("import", &name, implements, e)
}

// readExportDeclaration reads an export of a component's or instance's type.
func (s *scope) readExportDeclaration(r *bytereader.Reader) error {
	name, implements, err := readExternName(r)
	if err != nil {
		return err
	}
	e, err := s.readExtern(r, &s.typ.Fresh, name.Text)
	if err != nil {
		return fmt.Errorf("export `%s`: %w", name.Text, err)
	}
	return s.introduce("export", &name, implements, e)
}

func (s *scope) readExport(r *bytereader.Reader) error {
	name, implements, err := readExternName(r)
	if err != nil {
		return err
	}
	i := Item{Name: name.Text}
	if err := s.readIndexed(r, &i); err != nil {
		return err
	}
	d := &Export{Name: name.Text, Index: i.Index, Extern: i.Extern, From: i.Extern.Def}
	switch b := r.Byte(); {
	case b == 1:
		if d.Extern, err = s.readAscription(r, name.Text, i.Extern); err != nil {
			return fmt.Errorf("export `%s`: %w", name.Text, err)
		}
	case b > 1:
		r.Invalid(b, "optional component export type")
	}
	if r.Err != nil {
		return r.Err
	}
	s.defs = append(s.defs, d)
	if d.Extern.Sort == ctype.Types && d.Extern.Def.Resource != nil && strings.HasPrefix(d.Extern.Def.Resource.Name, "resource") {
		d.Extern.Def.Resource.Name = name.Text // what it is called for others, in errors
	}
	return s.introduce("export", &name, implements, d.Extern)
}

// readAscription reads the type that an export is to have for others.
func (s *scope) readAscription(r *bytereader.Reader, name string, actual ctype.Extern) (ctype.Extern, error) {
	var fresh []*ctype.Resource
	e, err := s.readExtern(r, &fresh, name)
	if err != nil {
		return e, err
	}
	open := map[*ctype.Resource]bool{}
	for _, f := range fresh {
		open[f] = true
	}
	if err := s.set.NewSubst().Match(actual, e, open); err != nil {
		return e, fmt.Errorf("ascribed type of export is not compatible with item's type: %w", err)
	}
	s.typ.Fresh = append(s.typ.Fresh, fresh...)
	return e, nil
}

// refuseResources refuses a type that names resource types of a component that it leaves.
func (s *scope) refuseResources(d *ctype.Def) error {
	if s.set.Closed(d) {
		return nil
	}
	return fmt.Errorf("the aliased type transitively refers to resources of another component: resources are not shared by outer aliases")
}
