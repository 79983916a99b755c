// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	oteltrace "go.opentelemetry.io/otel/trace"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	upstreamaudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/api/requestoptions"
	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/apiserver/body"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
	writeoptions "github.com/wasmplane/wasmplane/core/registry/options"
	"github.com/wasmplane/wasmplane/core/trace"
)

// call is one request for a resource on its way through a handler.
type call struct {
	s    *Server
	w    http.ResponseWriter
	req  *http.Request
	info *genericrequest.RequestInfo
	reg  *registry.Registry
	res  *api.Resource
	sub  *api.Subresource // nil for the resource itself
}

// resource serves everything below a group version. What is asked was read from
// the path once, before authorization.
func (s *Server) resource(w http.ResponseWriter, req *http.Request) {
	info, ok := genericrequest.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest || info.Resource == "" {
		s.answers.NotFound(w, req)
		return
	}
	c := &call{s: s, w: w, req: req, info: info}
	if !c.find() && (!s.catchUp(req.Context(), info) || !c.find()) {
		s.answers.NotFound(w, req)
		return
	}
	for _, text := range s.warningsOf(c.res, info.APIVersion) {
		warning.AddWarning(req.Context(), "", text)
	}
	if err := c.serve(); err != nil { //nolint:contextcheck // the call carries its request, and so its context
		s.answers.Fail(w, req, err)
	}
}

// find looks up what the path names.
func (c *call) find() (ok bool) {
	c.reg, ok = c.s.cfg.Registries.For(schema.GroupResource{Group: c.info.APIGroup, Resource: c.info.Resource})
	if !ok {
		return false
	}
	c.res = c.reg.Resource()
	return c.exists()
}

// catchUp learns of custom resources that another server may have established
// already. Groups that are built in have none, and cost nothing here.
func (s *Server) catchUp(ctx context.Context, info *genericrequest.RequestInfo) bool {
	if s.cfg.CatchUp == nil || !strings.Contains(info.APIGroup, ".") {
		return false
	}
	if _, builtin := s.cfg.Contract.Resource(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}); builtin {
		return false
	}
	if err := s.cfg.CatchUp(ctx); err != nil {
		s.cfg.Logger.WarnContext(ctx, "whether a custom resource has just been defined could not be found out", "path", info.Path, "error", err)
		return false
	}
	return true
}

func (s *Server) warningsOf(r *api.Resource, version string) []string {
	if r.Custom != nil {
		return r.In[version].Warnings
	}
	if text, removedIn := s.catalogue.Deprecation(r, version); text != "" {
		s.metrics.Deprecated(r.Group, version, r.GroupResource.Resource, removedIn)
		return []string{text}
	}
	return nil
}

// negotiate picks the format of the answer. Custom resources have no protobuf
// form; their metadata has.
func (c *call) negotiate() (answer.Format, error) {
	f, err := answer.Negotiate(c.req, true)
	if err != nil || c.res.Custom == nil || f.MediaType != object.Protobuf || !f.Convert.Empty() {
		return f, err
	}
	return answer.NegotiateText(c.req)
}

// exists says whether the path names something that there is.
func (c *call) exists() bool {
	if !c.res.Serves(c.info.APIVersion) {
		return false
	}
	isNamespace := c.res.Group == "" && c.info.Resource == "namespaces"
	if !c.res.Namespaced && !isNamespace && c.info.Namespace != "" {
		return false
	}
	if c.res.Namespaced && c.info.Namespace == "" && c.info.Verb != "list" && c.info.Verb != "watch" &&
		(c.info.Name != "" || c.res.Custom != nil) {
		return false
	}
	if c.info.Subresource == "" {
		return len(c.info.Parts) <= 2 && (c.info.Name == "" || named(c.res.Verbs))
	}
	if c.sub = c.res.SubresourcesIn(c.info.APIVersion)[c.info.Subresource]; c.sub == nil {
		return false
	}
	return len(c.info.Parts) <= 3 || c.sub.Name == "proxy"
}

// named says whether objects have paths of their own: a review, or a binding, is only sent.
func named(verbs []string) bool {
	return slices.ContainsFunc([]string{"get", "update", "patch", "delete"}, func(v string) bool { return slices.Contains(verbs, v) })
}

// serve answers by verb. An error is answered by the caller.
func (c *call) serve() error {
	if c.sub != nil {
		return c.serveSubresource()
	}
	verb := c.info.Verb
	if !slices.Contains(c.res.Verbs, verb) || c.res.Namespaced && c.info.Namespace == "" && verb != "list" &&
		verb != "watch" && verb != "create" {
		return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
	}
	if c.res.Virtual && verb == "create" {
		return c.action()
	}
	switch verb {
	case "get":
		return c.get()
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	case "create":
		if c.res.Namespaced && c.info.Namespace == "" || c.info.Name != "" {
			return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
		}
		return c.create()
	case "update":
		return c.update()
	case "patch":
		return c.patch()
	case "delete":
		return c.delete()
	case "deletecollection":
		return c.deleteCollection()
	}
	return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
}

// serveSubresource answers requests below an object.
func (c *call) serveSubresource() error {
	if c.info.Name == "" {
		return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
	}
	if c.sub.Name == "log" && c.info.Verb == "get" {
		return c.s.tunnel.Log(c.connection())
	}
	if len(c.sub.ConnectMethods) > 0 {
		if !slices.Contains(c.sub.ConnectMethods, c.req.Method) {
			return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
		}
		return c.s.tunnel.Connect(c.connection())
	}
	if !slices.Contains(c.sub.Verbs, c.info.Verb) {
		return apierrors.NewMethodNotSupported(c.res.GroupResource, c.req.Method)
	}
	switch {
	case c.sub.WritesParent() && c.info.Verb == "get":
		return c.get()
	case c.sub.WritesParent() && c.info.Verb == "update":
		return c.update()
	case c.sub.WritesParent() && c.info.Verb == "patch":
		return c.patch()
	}
	return c.action()
}

// request is the call as the registry wants it.
func (c *call) request() *registry.Request {
	who, _ := genericrequest.UserFrom(c.req.Context())
	r := &registry.Request{
		Version:     c.info.APIVersion,
		Namespace:   c.info.Namespace,
		Name:        c.info.Name,
		Subresource: c.info.Subresource,
		User:        who,
	}
	if !c.res.Namespaced {
		// The path of a namespace object names it as its own namespace, which is
		// what authorization and admission want; its key has none.
		if c.res.Group == "" && c.info.Resource == "namespaces" {
			r.Namespace = c.info.Name
		} else {
			r.Namespace = ""
		}
	}
	return r
}

// connection is the call as the tunnel wants it.
func (c *call) connection() tunnel.Connection {
	return tunnel.Connection{W: c.w, Req: c.req, Info: c.info, Registry: c.reg, Subresource: c.sub, Request: c.request()}
}

func (c *call) get() error {
	f, err := c.negotiate()
	if err != nil {
		return err
	}
	resourceVersion := ""
	if c.req.URL.RawQuery != "" {
		options, err := requestoptions.Get(c.req.URL.Query())
		if err != nil {
			return err
		}
		resourceVersion = options.ResourceVersion
	}
	o, err := c.reg.Get(c.req.Context(), c.request(), resourceVersion)
	if err != nil {
		return err
	}
	if err := c.needs(decodes(f, o)); err != nil {
		return err
	}
	c.s.answers.Object(c.w, c.req, f, http.StatusOK, c.reg, o)
	return nil
}

// needs asks for what it takes to decode a stored object.
func (c *call) needs(size int64) error {
	return decodedsize.NeedDecoded(c.req.Context(), decodedsize.Current, size, object.Protobuf)
}

// decodes is what an object takes that has to be decoded to be answered, since it is stored otherwise; small ones do not count.
func decodes(f answer.Format, o *object.Object) int64 {
	const large = 16 << 10
	if o.PackedSize() > large && (!f.Convert.Empty() || o.Packed(f.MediaType) == nil) {
		return decodedsize.OfObject(o)
	}
	return 0
}

// listOptions are those of lists, watches and deletecollections.
func (c *call) listOptions() (registry.ListOptions, *metainternal.ListOptions, error) {
	o, err := requestoptions.List(c.req.URL.Query())
	if err != nil {
		return registry.ListOptions{}, nil, err
	}
	out := registry.ListOptions{
		Labels:               o.LabelSelector,
		Fields:               o.FieldSelector,
		Name:                 c.info.Name,
		ResourceVersion:      o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch,
		Limit:                o.Limit,
		Continue:             o.Continue,
		Bookmarks:            o.AllowWatchBookmarks,
		SendInitialEvents:    o.SendInitialEvents,
	}
	return out, o, nil
}

func (c *call) list() error {
	f, err := c.negotiate()
	if err != nil {
		return err
	}
	options, _, err := c.listOptions()
	if err != nil {
		return err
	}
	l, err := c.reg.List(c.req.Context(), c.request(), options)
	if err != nil {
		return err
	}
	most := int64(0) // they are decoded one after the other
	for _, item := range l.Items {
		most = max(most, decodes(f, item.Object))
	}
	if err := c.needs(most); err != nil {
		return err
	}
	c.s.answers.List(c.w, c.req, f, c.reg, c.info.APIVersion, l)
	return nil
}

// body reads what a write brings.
func (c *call) body(r *registry.Request) (err error) {
	if r.MediaType, err = body.Type(c.req); err != nil {
		return err
	}
	if r.Body, err = body.Read(c.req); err != nil {
		return err
	}
	if err := body.CheckDepth(r.Body, r.MediaType); err != nil {
		return err
	}
	if r.MediaType == object.Protobuf && recursive(c.res.GroupResource) {
		if err := body.CheckProtobufDepth(bytes.TrimPrefix(r.Body, []byte(envelope.Prefix))); err != nil {
			return err
		}
	}
	c.auditBody(r)
	return nil
}

// recursive says whether the protobuf form of a resource can nest without end.
// Only schemas do; all other messages are as deep as their type.
func recursive(resource schema.GroupResource) bool {
	return resource.Group == apiextensionsv1.GroupName
}

// auditBody gives the audit log a body in JSON that came in another encoding.
func (c *call) auditBody(r *registry.Request) {
	entry := audit.From(c.req.Context())
	if !entry.WantsRequest() || len(r.Body) == 0 {
		return
	}
	switch r.MediaType {
	case object.YAML:
		if data, err := yaml.YAMLToJSON(r.Body); err == nil {
			entry.Request(data)
		}
	case object.Protobuf:
		o, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(r.Body, nil, nil)
		if err != nil {
			return // the answer says what is wrong with it
		}
		if data, err := json.Marshal(o); err == nil {
			entry.Request(data)
		}
	}
}

func (c *call) create() error { return c.write(c.reg.Create) }
func (c *call) update() error { return c.write(c.reg.Update) }
func (c *call) patch() error  { return c.write(c.reg.Patch) }

// write is a create, an update or a patch.
func (c *call) write(do func(context.Context, *registry.Request) (registry.Result, error)) error {
	f, err := c.negotiate()
	if err != nil {
		return err
	}
	r := c.request()
	if err := c.fill(r); err != nil {
		return err
	}
	result, err := do(c.req.Context(), r)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if result.Created {
		code = http.StatusCreated
	}
	c.traceWrite(result.Object)
	if entry := audit.From(c.req.Context()); entry != nil {
		if m, err := result.Object.Meta(); err == nil {
			entry.About(m)
		}
	}
	c.s.answers.Object(c.w, c.req, f, code, c.reg, result.Object)
	return nil
}

// patchTypes are those that a patch may have: a strategic merge needs the Go type.
func (c *call) patchTypes() []string {
	if c.res.Custom != nil {
		return []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	}
	return []string{
		string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType),
		string(types.ApplyYAMLPatchType),
	}
}

// delete removes an object, or begins to.
func (c *call) delete() error {
	f, err := c.negotiate()
	if err != nil {
		return err
	}
	r := c.request()
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	r.Options = options
	remove := c.reg.Delete
	if writeoptions.Unsafe(options) {
		if err := c.mayDeleteUnread(); err != nil {
			return err
		}
		remove = c.reg.DeleteUnread
	}
	result, err := remove(c.req.Context(), r)
	if err != nil {
		return err
	}
	c.traceWrite(result.Object)
	code := http.StatusOK
	if !result.Deleted && options.OrphanDependents != nil && !*options.OrphanDependents { //nolint:staticcheck // deprecated, and still sent
		code = http.StatusAccepted
	}
	if result.Status != nil {
		result.Status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		c.s.answers.JSON(c.w, c.req, f, code, result.Status)
		return nil
	}
	c.s.answers.Object(c.w, c.req, f, code, c.reg, result.Object)
	return nil
}

// mayDeleteUnread: who may delete an object may not yet delete what nobody can
// read, with whatever it was holding back. The attempt is in the audit log.
func (c *call) mayDeleteUnread() error {
	ctx := c.req.Context()
	upstreamaudit.AddAuditAnnotation(ctx, "apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	who, _ := genericrequest.UserFrom(ctx)
	question := authz.AttributesOf(c.info, who)
	question.Verb = "unsafe-delete-ignore-read-errors"
	decision, reason, err := c.s.cfg.Authorizer.Authorize(ctx, question)
	switch {
	case err != nil:
		err = fmt.Errorf("error while checking permission for %q, %w", question.Verb, err)
	case decision != authorizer.DecisionAllow:
		err = fmt.Errorf("not permitted to do %q, reason: %s", question.Verb, reason)
	default:
		return nil
	}
	return apierrors.NewForbidden(c.res.GroupResource, c.info.Name, err)
}

func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	data, err := body.Read(c.req)
	if err != nil {
		return nil, err
	}
	mediaType := ""
	if len(data) > 0 {
		if mediaType, err = body.Type(c.req); err != nil {
			return nil, err
		}
		if err := body.CheckDepth(data, mediaType); err != nil {
			return nil, err
		}
	}
	return requestoptions.Delete(c.req.URL.Query(), data, mediaType)
}

func (c *call) deleteCollection() error {
	f, err := c.negotiate()
	if err != nil {
		return err
	}
	list, _, err := c.listOptions()
	if err != nil {
		return err
	}
	r := c.request()
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	if writeoptions.Unsafe(options) {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", field.ErrorList{
			field.Invalid(field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true,
				"is not allowed with DELETECOLLECTION, try again after removing the option"),
		})
	}
	r.Options = options
	l, err := c.reg.DeleteCollection(c.req.Context(), r, list)
	if err != nil {
		return err
	}
	c.s.answers.List(c.w, c.req, f, c.reg, c.info.APIVersion, l)
	return nil
}

// fieldValidation is what the server does where the client doesn't say.
func fieldValidation(asked string) string {
	if asked == "" {
		return metav1.FieldValidationWarn
	}
	return asked
}

// manager is who owns the fields of a write: who the client says it is, or the
// first part of its user agent.
func (c *call) manager(asked string) string {
	if asked != "" {
		return asked
	}
	agent, _, _ := strings.Cut(c.req.UserAgent(), "/")
	var b strings.Builder
	for _, r := range agent {
		if !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > validation.FieldManagerMaxLength {
			break
		}
		b.WriteRune(r)
	}
	if b.Len() == 0 {
		return "unknown"
	}
	return b.String()
}

// traceWrite tells the request's span which object was written.
func (c *call) traceWrite(o *object.Object) {
	span := oteltrace.SpanFromContext(c.req.Context())
	if !span.IsRecording() || o == nil {
		return
	}
	m, err := o.Meta()
	if err != nil {
		return
	}
	span.SetAttributes(
		trace.KindKey.String(o.Kind().Kind),
		trace.NamespaceKey.String(m.GetNamespace()),
		trace.NameKey.String(m.GetName()),
		trace.UIDKey.String(string(m.GetUID())),
		trace.RevisionKey.String(m.GetResourceVersion()),
		trace.GenerationKey.Int64(m.GetGeneration()),
	)
	if owner := metav1.GetControllerOfNoCopy(m); owner != nil {
		span.SetAttributes(trace.OwnerUIDKey.String(string(owner.UID)), trace.OwnerKindKey.String(owner.Kind),
			trace.OwnerNameKey.String(owner.Name))
	}
}
