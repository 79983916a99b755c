// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/requestoptions"
	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/apiserver/body"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// action serves what is more than reading or writing an object: some subresources,
// and resources that store nothing. Only a scale has other forms than its own.
func (c *call) action() error {
	f, err := answer.Negotiate(c.req, c.info.Subresource == "scale")
	if err != nil {
		return err
	}
	r := c.request()
	if err := c.fill(r); err != nil {
		return err
	}
	o, err := c.s.actions.Do(c.req.Context(), c.reg, c.info.Verb, r)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if c.info.Verb == "create" {
		code = http.StatusCreated
	}
	return c.answer(f, code, o)
}

// fill reads options and body of whatever write this is.
func (c *call) fill(r *registry.Request) error {
	query := c.req.URL.Query()
	switch c.info.Verb {
	case "create":
		options, err := requestoptions.Create(query)
		if err != nil {
			return err
		}
		return c.fillWrite(r, options, &options.FieldValidation, options.FieldManager)
	case "update":
		options, err := requestoptions.Update(query)
		if err != nil {
			return err
		}
		return c.fillWrite(r, options, &options.FieldValidation, options.FieldManager)
	case "patch":
		return c.patchBody(r)
	}
	return nil
}

// fillWrite fills in the options of a create or an update, and reads its body.
func (c *call) fillWrite(r *registry.Request, options runtime.Object, validation *string, manager string) error {
	*validation = fieldValidation(*validation)
	r.Options, r.Manager = options, c.manager(manager)
	return c.body(r)
}

// patchBody reads type, body and options of a patch.
func (c *call) patchBody(r *registry.Request) error {
	kind, _, _ := strings.Cut(c.req.Header.Get("Content-Type"), ";")
	if allowed := c.patchTypes(); !slices.Contains(allowed, kind) {
		return answer.UnsupportedMediaType(allowed)
	}
	r.PatchType = types.PatchType(kind)
	var err error
	if r.Body, err = body.Read(c.req); err != nil {
		return err
	}
	depthType := object.JSON
	if r.PatchType == types.ApplyYAMLPatchType && !bytes.HasPrefix(bytes.TrimSpace(r.Body), []byte("{")) {
		depthType = object.YAML
	}
	if err := body.CheckDepth(r.Body, depthType); err != nil {
		return err
	}
	options, err := requestoptions.Patch(c.req.URL.Query(), r.PatchType)
	if err != nil {
		return err
	}
	options.FieldValidation = fieldValidation(options.FieldValidation)
	r.Options, r.Manager = options, c.manager(options.FieldManager)
	return nil
}

// answer writes an object that is not of the resource's kind.
func (c *call) answer(f answer.Format, code int, o runtime.Object) error {
	if status, ok := o.(*metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		if status.Code == 0 {
			status.Code = int32(code)
		}
		audit.From(c.req.Context()).Status(status)
	} else if entry := audit.From(c.req.Context()); entry.WantsResponse() {
		if data, err := json.Marshal(o); err == nil {
			entry.Response(data)
		}
	}
	if scale, ok := o.(*autoscalingv1.Scale); ok && !f.Convert.Empty() {
		return c.answerConverted(f, code, scale)
	}
	c.s.answers.Value(c.w, c.req, f, code, o)
	return nil
}

// answerConverted answers with a Scale as a Table or as its metadata.
func (c *call) answerConverted(f answer.Format, code int, scale *autoscalingv1.Scale) error {
	if f.IsPartial() {
		partial, err := api.Partial(scale)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		partial.SetGroupVersionKind(f.Convert)
		c.s.answers.Value(c.w, c.req, f, code, partial)
		return nil
	}
	options, err := requestoptions.Table(c.req.URL.Query())
	if err != nil {
		return err
	}
	table, err := c.s.cfg.Contract.ScaleTable(scale, *options)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	table.SetGroupVersionKind(f.Convert)
	c.s.answers.JSON(c.w, c.req, f, code, table)
	return nil
}
