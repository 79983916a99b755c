// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// stepKind is what a step of a path selects.
type stepKind uint8

const (
	stepKey   stepKind = iota // a field or a map's key
	stepEach                  // every item of an array
	stepAlias                 // a place that depends on the kind of object
)

type step struct {
	kind stepKind
	name string
}

// Path selects values of a document:
//
//	object.spec.containers[*].image
//	object.metadata.annotations["example.com/owner"]
//	object.@podSpec.containers[*].image
//
// A step is a name, a quoted key in brackets, [*] for every item of an array, or
// an alternative: @ and a name that stands for one place in a Pod, another in a
// Deployment, and so on.
type Path struct {
	text  string
	steps []step
}

// String is the path as it was written.
func (p Path) String() string { return p.text }

// maxPath bounds what a manifest may ask to be parsed.
const maxPath = 1024

// ParsePath reads a path.
func ParsePath(text string) (Path, error) {
	p := Path{text: text}
	fail := func(why string) (Path, error) { return Path{}, fmt.Errorf("path %q: %s", text, why) }
	if text == "" || len(text) > maxPath {
		return fail("it must have between 1 and 1024 characters")
	}
	rest, wantName := text, true
	for rest != "" {
		switch {
		case strings.HasPrefix(rest, "[*]"):
			if wantName {
				return fail("[*] stands behind the name of an array")
			}
			p.steps = append(p.steps, step{kind: stepEach})
			rest = rest[3:]
		case strings.HasPrefix(rest, `["`):
			key, left, err := quotedKey(rest[1:])
			if err != nil {
				return fail(err.Error())
			}
			p.steps = append(p.steps, step{kind: stepKey, name: key})
			rest, wantName = left, false
		case rest[0] == '.':
			if wantName || len(rest) == 1 {
				return fail("a name is missing beside a dot")
			}
			rest, wantName = rest[1:], true
		case wantName:
			n := strings.IndexAny(rest, ".[]\" ")
			if n < 0 {
				n = len(rest)
			}
			if n == 0 {
				return fail(fmt.Sprintf("a name was expected at %q", rest))
			}
			s := step{kind: stepKey, name: rest[:n]}
			if s.name[0] == '@' {
				s.kind = stepAlias
			}
			p.steps = append(p.steps, s)
			rest, wantName = rest[n:], false
		default:
			return fail(fmt.Sprintf(`at %q a dot, [*] or ["key"] was expected`, rest))
		}
	}
	if wantName {
		return fail("it ends in a dot")
	}
	return p, nil
}

// quotedKey reads `"key"]` with the escapes of JSON.
func quotedKey(text string) (key, rest string, err error) {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			if i+1 >= len(text) || text[i+1] != ']' {
				return "", "", errors.New("a quoted key ends in \"]")
			}
			if err := json.Unmarshal([]byte(text[:i+1]), &key); err != nil {
				return "", "", fmt.Errorf("%s is no quoted key", text[:i+1])
			}
			return key, text[i+2:], nil
		}
	}
	return "", "", errors.New("a quoted key is not closed")
}

// Alternatives say where an alias leads, by kind; "*" is every other kind. The
// value is a path without [*] and without aliases, "" for the object itself.
type Alternatives map[string]string

// BuiltinAliases are known without being declared. They are shared: nobody changes them.
func BuiltinAliases() map[string]Alternatives { return builtinAliases() }

var builtinAliases = sync.OnceValue(func() map[string]Alternatives {
	const template, cron = "spec.template", "spec.jobTemplate.spec.template"
	kinds := func(suffix, pod string) Alternatives {
		a := Alternatives{"Pod": pod, "PodTemplate": "template." + suffix, "CronJob": cron + "." + suffix}
		for _, k := range []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"} {
			a[k] = template + "." + suffix
		}
		return a
	}
	return map[string]Alternatives{"@podSpec": kinds("spec", "spec"), "@podMeta": kinds("metadata", "metadata")}
})
