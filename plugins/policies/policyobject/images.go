// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"context"
	"errors"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagegate"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// checkImages says what is wrong with a policy about images, and what its writer must be allowed: to read what the policy sees and
// the Secrets that it names, to write what it changes, and, for one of the cluster, to have the control plane
// send something to registries.
func checkImages(o *unstructured.Unstructured) ([]rights.Need, error) {
	p, err := imagepolicy.Read(o.Object)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if p.Namespaced() {
		namespace = p.Namespace
		if err := withinReach(p.Matches()[0], p.Pins); err != nil {
			return nil, err
		}
		if p.PlainHTTP {
			return nil, errors.New("spec.credentials.allowInsecureRegistry: a policy of a namespace asks registries with TLS only")
		}
	}
	out := needs(p.Matches()[0], p.Pins, namespace)
	secrets := imagegate.SecretsNamespace
	if p.Namespaced() {
		secrets = namespace
	} else {
		out = append(out, rights.Need{Field: "spec.matchImageReferences", What: "send from the control plane's machines"})
	}
	for _, name := range p.Secrets {
		out = append(out, rights.Need{Field: "spec.credentials.secrets", Attributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Resource: "secrets", Namespace: secrets, Name: name,
		}})
	}
	return out, nil
}

// images says on policies about images what became of them. The server reads them itself.
func (c *Controller) images(ctx context.Context) {
	for _, kind := range kyverno.ImageKinds() {
		r := KyvernoResource(kind)
		list, _ := c.objects(r)
		for _, o := range list {
			if o.GetDeletionTimestamp() != nil {
				continue
			}
			p, err := imagepolicy.Read(o.Object)
			if err == nil && o.GetAnnotations()[apiobject.WriterAnnotation] == "" {
				err = errNobody
			}
			status := kyvernoStatus(o, &kyverno.Objects{Admission: p != nil && p.Admission}, true, err)
			delete(status, "generated") // nothing is made of it
			c.report(ctx, o, "bring it into force", err)
			c.report(ctx, o, "write the status", c.writeStatus(ctx, r, o, status))
		}
	}
}
