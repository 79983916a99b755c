// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
)

// FieldSelector checks a selector of one version against the labels that r
// supports and turns it into labels that Attrs answers. The error is
// upstream's refusal: an API status.
func (c *Contract) FieldSelector(r *Resource, version string, s fields.Selector) (fields.Selector, error) {
	if s == nil || s.Empty() {
		return fields.Everything(), nil
	}
	if r.Custom != nil {
		return r.customSelector(version, s)
	}
	out, err := s.Transform(func(label, value string) (string, string, error) {
		return r.scheme.ConvertFieldLabel(r.GVK(version), label, value)
	})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

func revisionText(revision int64) string { return strconv.FormatInt(revision, 10) }
