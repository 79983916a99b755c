// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// known is what may be told of a request in labels: of resources that there are
// everything, of another server's the group version, and of names that a client
// made up nothing. Each of those would be a series that is never forgotten.
func (s *Server) known(info *genericrequest.RequestInfo) *genericrequest.RequestInfo {
	if !info.IsResourceRequest {
		return info
	}
	if reg, ok := s.cfg.Registries.For(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}); ok {
		r := reg.Resource()
		if r.Serves(info.APIVersion) && (info.Subresource == "" || r.SubresourcesIn(info.APIVersion)[info.Subresource] != nil) {
			return info
		}
	}
	out := *info
	out.Resource, out.Subresource = "", ""
	if !s.catalogue.IsRemote(info) {
		out.APIGroup, out.APIVersion = "", ""
	}
	return &out
}
