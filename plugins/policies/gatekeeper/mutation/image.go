// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/path/parser"
)

// What parts of an image's reference have to look like: no part may hold what would be read as
// the beginning of the next one, or the same mutator would change its own result.
var (
	imageDomain = regexp.MustCompile(`^(\w[\w-]*\.[\w.-]*\w|localhost)(:\d+)?$`)
	imagePath   = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+|/)[a-z0-9]+)*$`)
	imageTag    = regexp.MustCompile(`^(:\w[\w.-]{0,127}|@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,})$`)
)

// image replaces parts of an image's reference; "" leaves one as it is.
type image struct{ domain, path, tag string }

func (m *Mutator) takeImage(p *parameters) error {
	if end, _ := m.last(); end.Type() == parser.ListNode {
		return errors.New("spec.location: it ends with items of a list; an image is a text")
	}
	if err := m.keepsKey(); err != nil {
		return err
	}
	var i image
	for _, part := range []struct {
		name string
		form *regexp.Regexp
		from *string
		to   *string
		like string
	}{
		{"assignDomain", imageDomain, p.AssignDomain, &i.domain, "a host such as registry.example.com:5000"},
		{"assignPath", imagePath, p.AssignPath, &i.path, "a path such as team/app"},
		{"assignTag", imageTag, p.AssignTag, &i.tag, "a tag such as :v1, or a digest such as @sha256:..."},
	} {
		if part.from == nil || *part.from == "" {
			continue
		}
		if !part.form.MatchString(*part.from) {
			return fmt.Errorf("spec.parameters.%s: expected %s, found %q", part.name, part.like, *part.from)
		}
		*part.to = *part.from
	}
	if i == (image{}) {
		return errors.New("spec.parameters: one of assignDomain, assignPath and assignTag has to be given")
	}
	if domain, _ := cutDomain(i.path); i.domain == "" && domain != "" {
		return fmt.Errorf("spec.parameters.assignPath: %q begins with what is read as a host: say it as assignDomain", i.path)
	}
	m.setter, m.terminal, m.closed = &i, textNode, true
	return nil
}

func (i *image) set(_ *walk, parent map[string]any, field string) error {
	text, ok := parent[field].(string)
	if there, given := parent[field]; given && !ok {
		return fmt.Errorf("expected an image, found %s", kindOf(there))
	}
	domain, rest := cutDomain(text)
	path, tag := rest, ""
	if at := strings.IndexAny(rest, ":@"); at >= 0 {
		path, tag = rest[:at], rest[at:]
	}
	now := image{orElse(i.domain, domain), orElse(i.path, path), orElse(i.tag, tag)}
	if now.domain != "" {
		now.domain += "/"
	}
	parent[field] = now.domain + now.path + now.tag
	return nil
}

func (*image) item(*walk) (map[string]any, error) {
	return nil, errors.New("an image is no item of a list by key")
}

func orElse(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

// cutDomain splits an image's registry off: what stands before the first slash and looks like a host.
func cutDomain(reference string) (domain, rest string) {
	first, rest, found := strings.Cut(reference, "/")
	if !found || !strings.ContainsAny(first, ".:") && first != "localhost" {
		return "", reference
	}
	return first, rest
}
