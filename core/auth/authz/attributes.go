// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// AttributesOf is the question that authorizers are asked about a request.
func AttributesOf(info *genericrequest.RequestInfo, who user.Info) *authorizer.AttributesRecord {
	a := &authorizer.AttributesRecord{
		User:            who,
		Verb:            info.Verb,
		Namespace:       info.Namespace,
		APIGroup:        info.APIGroup,
		APIVersion:      info.APIVersion,
		Resource:        info.Resource,
		Subresource:     info.Subresource,
		Name:            info.Name,
		ResourceRequest: info.IsResourceRequest,
		Path:            info.Path,
	}
	if info.FieldSelector != "" {
		selector, err := fields.ParseSelector(info.FieldSelector)
		if err != nil {
			a.FieldSelectorParsingErr = err
		} else if requirements := selector.Requirements(); len(requirements) > 0 {
			a.FieldSelectorRequirements = requirements
		}
	}
	if info.LabelSelector != "" {
		selector, err := labels.Parse(info.LabelSelector)
		if err != nil {
			a.LabelSelectorParsingErr = err
		} else if requirements, _ := selector.Requirements(); len(requirements) > 0 {
			a.LabelSelectorRequirements = requirements
		}
	}
	return a
}
