package apiserver

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/registry"
)

// KubeletClient reaches the nodes.
type KubeletClient struct{}

func (c *call) action() error {
	return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
}

func (c *call) connect() error {
	return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
}

func (c *call) review() error {
	return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
}

func (c *call) traceWrite(registry.Result) {}
