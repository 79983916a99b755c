// SPDX-License-Identifier: Apache-2.0

package ctype

import (
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// Name is the name of an import or export, taken apart.
type Name struct {
	Text string
	// Annotation is "constructor", "method", "static", or "" for a plain name or an interface.
	Annotation string
	// Resource and Member are the labels of an annotated name.
	Resource, Member string
	// Interface: it is the name of an interface, Version what follows its @.
	Interface bool
	Version   string
}

var (
	label     = regexp.MustCompile(`^([a-z][0-9a-z]*|[A-Z][0-9A-Z]*)(-([0-9a-z]+|[0-9A-Z]+))*$`)
	lowerName = regexp.MustCompile(`^[a-z][0-9a-z]*(-[0-9a-z]+)*$`)
)

// CheckLabel says what is wrong with a label.
func CheckLabel(what, s string) error {
	if s == "" {
		return fmt.Errorf("%s cannot be empty", what)
	}
	if !label.MatchString(s) {
		return fmt.Errorf("%s `%s` is not in kebab case", what, s)
	}
	return nil
}

// ParseName takes the name of an import or export apart.
func ParseName(s string) (Name, error) {
	n := Name{Text: s}
	if strings.HasPrefix(s, "[") {
		return n, n.annotated(s)
	}
	if strings.ContainsAny(s, ":/@") {
		n.Interface = true
		return n, n.parseInterface(s)
	}
	if !label.MatchString(s) {
		return n, fmt.Errorf("`%s` is not a valid extern name: it is not in kebab case", s)
	}
	return n, nil
}

func (n *Name) annotated(s string) error {
	kind, rest, ok := strings.Cut(s[1:], "]")
	switch {
	case !ok || kind != "constructor" && kind != "method" && kind != "static":
		return fmt.Errorf("`%s` is not a valid extern name", s)
	case kind == "constructor":
		n.Resource = rest
	default:
		var dot bool
		if n.Resource, n.Member, dot = strings.Cut(rest, "."); !dot {
			return fmt.Errorf("failed to find `.` character in `%s`", s)
		}
		if !label.MatchString(n.Member) {
			return fmt.Errorf("`%s` is not in kebab case: it is not a valid extern name", n.Member)
		}
	}
	n.Annotation = kind
	if !label.MatchString(n.Resource) {
		return fmt.Errorf("`%s` is not in kebab case: it is not a valid extern name", n.Resource)
	}
	return nil
}

func (n *Name) parseInterface(s string) error {
	namespace, rest, ok := strings.Cut(s, ":")
	if !ok {
		return fmt.Errorf("`%s` is not in kebab case", s)
	}
	pkg, projection, ok := strings.Cut(rest, "/")
	if !ok {
		return fmt.Errorf("expected `/` after package name in `%s`", s)
	}
	projection, version, versioned := strings.Cut(projection, "@")
	if !lowerName.MatchString(namespace) || !lowerName.MatchString(pkg) {
		bad := namespace
		if lowerName.MatchString(namespace) {
			bad = pkg
		}
		return fmt.Errorf("`%s` is not in kebab case", bad)
	}
	if head, tail, more := strings.Cut(projection, "/"); more {
		return fmt.Errorf("trailing characters found: `/%s` behind `%s`", tail, head)
	}
	if !label.MatchString(projection) {
		return fmt.Errorf("`%s` is not in kebab case", projection)
	}
	if versioned {
		if err := checkVersion(version); err != nil {
			return fmt.Errorf("`%s` is not a valid semver in `%s`: %w", version, s, err)
		}
	}
	n.Version = version
	return nil
}

// checkVersion wants three numbers: the library also takes what leaves some out.
func checkVersion(v string) error {
	if v == "" {
		return fmt.Errorf("empty string")
	}
	for i, r := range v {
		plain := r >= '0' && r <= '9' || r == '.'
		if i < 5 && !plain && r != '-' && r != '+' {
			return fmt.Errorf("unexpected character '%c'", r)
		}
	}
	core, _, _ := strings.Cut(strings.ReplaceAll(v, "+", "-"), "-")
	if strings.Count(core, ".") != 2 || !semver.IsValid("v"+v) {
		return fmt.Errorf("unexpected end of input, or an unexpected character")
	}
	return nil
}

// Canonical is the form in which names of one scope have to differ.
func (n *Name) Canonical() string {
	switch n.Annotation {
	case "constructor":
		return "[constructor]" + strings.ToLower(n.Resource)
	case "method", "static":
		if n.Resource == n.Member {
			return strings.ToLower(n.Resource)
		}
		return strings.ToLower(n.Resource + "." + n.Member)
	}
	return strings.ToLower(n.Text)
}

// Compatible is the part of an interface's name that decides whether a host's serves: the version
// is cut behind the first number that is not zero, as semantic versions promise.
func Compatible(name string) string {
	base, version, ok := strings.Cut(name, "@")
	if !ok {
		return name
	}
	if strings.Contains(version, "-") {
		return name // a version before a release promises nothing
	}
	// A part of the name, as this is asked for with each resource that a host gives.
	end := len(base) + len("@")
	for i := range 3 {
		number, rest, more := strings.Cut(version, ".")
		if i == 2 {
			number = version
		}
		if end += len(number); number != "0" {
			return name[:end]
		}
		if !more {
			break
		}
		end, version = end+len("."), rest
	}
	return name
}
