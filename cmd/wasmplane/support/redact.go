// SPDX-License-Identifier: Apache-2.0

package support

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
)

// hidden stands where something was.
const hidden = "(redacted)"

// redactor takes out of texts and objects what might let somebody in. It rather takes too
// much than too little.
type redactor struct{ known *strings.Replacer }

// newRedactor also takes out these secrets, wherever they stand, as they are and in base64.
func newRedactor(secrets []string) *redactor {
	var pairs []string
	add := func(s string) {
		if len(s) >= shortest {
			pairs = append(pairs, s, hidden)
		}
	}
	for _, s := range secrets {
		add(s)
		if s = strings.TrimSpace(s); len(s) < shortest {
			continue
		}
		add(s)
		add(base64.StdEncoding.EncodeToString([]byte(s)))
		if lines := strings.Split(s, "\n"); len(lines) > 1 { // a log shows them one by one
			for _, line := range lines {
				add(strings.TrimSpace(line))
			}
		}
	}
	return &redactor{strings.NewReplacer(pairs...)}
}

// shortest of the secrets that are looked for in texts: shorter ones are words of every text.
const shortest = 8

// forms are what secrets look like. Where a pattern has a group, that stays.
var forms = []*regexp.Regexp{
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`),
	regexp.MustCompile(`(?s)\A[A-Za-z0-9+/=\s]*-----END [A-Z ]*PRIVATE KEY-----`), // its beginning was cut off
	regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]*`),                           // PEM in base64
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}`),           // a JWT
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), // a token to join by
	regexp.MustCompile(`(?:AKIA|ASIA)[0-9A-Z]{16}`),     // of AWS
	regexp.MustCompile(`(://[^/\s:@"]*:)[^/\s@"]+@`),    // a password in a URL
	regexp.MustCompile(`\bgh[pousr]_[A-Za-z0-9]{20,}`),  // of GitHub
	regexp.MustCompile(`(?i)((?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|authorization)[\w.-]*` +
		`(?:\\?["'])?\s*[:=]\s*)(?:\\"(?:[^"\\]|\\[^"])*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&"'})\]]+)`),
	regexp.MustCompile(`(?i)(--?[\w-]*(?:pass(?:word|wd|phrase)?|secret|token|api-?key|access-?key|credentials?)\s+)[^\s-]\S*`),
}

// text is s without what looks like a secret.
func (r *redactor) text(s string) string {
	s = r.known.Replace(s)
	for _, f := range forms {
		s = f.ReplaceAllString(s, "${1}"+hidden)
	}
	return s
}

// opaque are the members that may hold anything, a secret too.
var opaque = []string{
	"args", "command", "data", "binaryData", "stringData", "settings", "httpHeaders", "volumeAttributes", "options", "parameters",
}

// secretMember is a member whose name says that it is one.
var secretMember = regexp.MustCompile(`(?i)(?:pass(?:word|wd|phrase)?|secret|token|api_?key|access_?key(?:_?id)?|private_?key|credentials?)$`)

// open are annotations that Kubernetes and wasmplane write themselves, by how they begin.
var open = []string{
	"deployment.kubernetes.io/", "node.alpha.kubernetes.io/", "kubernetes.io/config.", "volumes.kubernetes.io/", "pv.kubernetes.io/",
	"endpoints.kubernetes.io/", "control-plane.alpha.kubernetes.io/",
}

// object redacts a decoded object in place: free text by its looks, and wholly what may
// hold anything. What it answers takes the object's place.
func (r *redactor) object(v any) any {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case []any:
		for i := range v {
			v[i] = r.object(v[i])
		}
	case map[string]any:
		delete(v, "managedFields")
		_, terminated := v["exitCode"]
		for key, member := range v {
			text, isText := member.(string)
			switch {
			case key == "annotations":
				annotations(member)
			case key == "env":
				v[key] = environment(member)
			case slices.Contains(opaque, key), terminated && key == "message": // which may be a log's end
				v[key] = hide(member)
			case isText && text != "" && secretMember.MatchString(key):
				v[key] = hidden
			default:
				v[key] = r.object(member)
			}
		}
	}
	return v
}

// annotations keeps their keys: the values may be whole objects, as they were applied.
func annotations(v any) {
	of, _ := v.(map[string]any)
	for key := range of {
		if !slices.ContainsFunc(open, func(p string) bool { return strings.HasPrefix(key, p) }) {
			of[key] = hidden
		}
	}
}

// environment keeps the names of variables, and where they come from.
func environment(v any) any {
	list, ok := v.([]any)
	if !ok {
		return hide(v)
	}
	for _, e := range list {
		if e, ok := e.(map[string]any); ok && e["value"] != nil {
			e["value"] = hidden
		}
	}
	return list
}

// option is a flag with its value in one word.
var option = regexp.MustCompile(`^(--[a-z][a-z0-9-]*=).`)

// hide keeps how many there are, names of members and of flags, and nothing else.
func hide(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = hide(v[key])
		}
		return v
	case []any:
		for i := range v {
			v[i] = hide(v[i])
		}
		return v
	case string:
		if m := option.FindStringSubmatch(v); m != nil {
			return m[1] + hidden
		}
	case nil:
		return nil
	}
	return hidden
}
