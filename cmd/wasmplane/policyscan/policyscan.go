// SPDX-License-Identifier: Apache-2.0

// Package policyscan is what a scan of stored objects sees of a server (plugins/policies/scan): which of its policies and plugins
// want to be asked, and what they are called in reports.
package policyscan

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/view"
	"github.com/wasmplane/wasmplane/core/watchcache"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/admissionpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/gate"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celgate"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagegate"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
	"github.com/wasmplane/wasmplane/plugins/policies/scan"
)

// World is what a scanner sees of a server: the plugins and policies that requests are judged by,
// and objects as the watch cache has them.
type World struct {
	View       *view.View
	Namespaces corelisters.NamespaceLister
	Policies   *policy.Policies
	Plugins    func() []admission.Plugin
	Images     *imagegate.Gate // policies about images; nil = there are none
	Kyverno    *celgate.Gate   // policies that look beyond the request; nil = there are none
	Gate       *gate.Gate      // Gatekeeper's expansion templates; nil = there are none
	Format     scan.Format     // of reports; "" = there are none
}

// scanUser is who asks: nobody's policy is about them.
var scanUser = &user.DefaultInfo{Name: "wasmplane:policy-scan", Groups: []string{user.AllAuthenticated}}

// again is how often a policy is asked again that looks at more than the object.
const again = 10 * time.Minute

func withOthers(version string, others bool) string {
	if !others {
		return version
	}
	return version + "@" + strconv.FormatInt(time.Now().Unix()/int64(again/time.Second), 10)
}

// Judges implements scan.World.
func (w *World) Judges(ctx context.Context) (out []scan.Policy, err error) {
	objects := map[string]*unstructured.Unstructured{}
	for _, kind := range []string{plugindefinition.Kind, plugindefinition.TenantKind} {
		gvk := schema.GroupVersionKind{Group: plugindefinition.Group, Version: plugindefinition.Version, Kind: kind}
		list, err := w.View.List(ctx, gvk, "", labels.Everything())
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			u, ok := o.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			name := u.GetName()
			if u.GetNamespace() != "" {
				name = apiobject.TenantName(u.GetNamespace(), name)
			}
			objects[name] = u
		}
	}
	var expansions *gate.Expansions
	if w.Gate != nil {
		if expansions, err = w.Gate.Expansions(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range w.Plugins() {
		s, ok := p.(pointadmission.Standing)
		if ok && s.Pending() { // what it said before is not forgotten
			return nil, fmt.Errorf("plugin %s is still being loaded", s.Name())
		}
		if !ok {
			continue
		}
		v := s.Version()
		if v == nil {
			v = s.Broken()
		}
		if v == nil {
			continue
		}
		one := w.plugin(ctx, s, v, objects[s.Name()])
		if one == nil {
			continue
		}
		if v.Entry.ABI == manifest.Gatekeeper && expansions != nil {
			one = one.withImplied(s, expansions)
		}
		out = append(out, one)
	}
	for _, s := range w.Policies.Standing() {
		if info, wanted := inCELInfo(s); wanted {
			out = append(out, ofCEL(s, info))
		}
	}
	if w.Kyverno != nil {
		list, err := w.Kyverno.Standing(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			out = append(out, ofKyverno(s))
		}
	}
	if w.Images != nil {
		list, err := w.Images.Standing(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			out = append(out, ofImages(s))
		}
	}
	return out, nil
}

// plugin is a plugin that is asked about what is stored: one that was made of a policy, or whose mode has no effect
// on requests. nil = it is not. One that could not be loaded has no version: what it has against objects stays.
func (w *World) plugin(ctx context.Context, s pointadmission.Standing, v *point.Version, o *unstructured.Unstructured) *judge {
	info := scan.Info{Key: "plugin/" + s.Name(), Source: "wasmplane", Policy: s.Name(), Warns: v.Entry.Mode == manifest.Warn}
	version := v.Digest
	if o != nil {
		info.Space = o.GetNamespace()
		version += " " + string(o.GetUID()) + "/" + strconv.FormatInt(o.GetGeneration(), 10)
	} else {
		version += fmt.Sprint(v.Entry)
	}
	switch project := projectOf(o); project {
	case policyobject.Gatekeeper, policyobject.Kubewarden:
		owner := o.GetOwnerReferences()[0]
		about := scan.Reference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: o.GetNamespace(), Name: owner.Name}
		info.Source, info.Policy = project, owner.Name
		if about.Namespace != "" {
			info.Policy = about.Namespace + "/" + owner.Name
		}
		if project == policyobject.Gatekeeper {
			if o.GetAnnotations()[policies.BackgroundAnnotation] == "false" {
				return nil
			}
			info.Policy, info.About, info.Action = owner.Kind+"/"+owner.Name, &about, actions[v.Entry.Mode]
			if action := o.GetAnnotations()[policies.ActionAnnotation]; action != "" {
				info.Action, info.Warns = action, action == "warn"
				version += " " + action
			}
		} else if !w.background(ctx, about) {
			return nil
		}
	default:
		if v.Entry.Mode != manifest.Audit && v.Entry.Mode != manifest.Shadow {
			return nil
		}
	}
	if v.Err != nil {
		return ofPlugin(s, info, "")
	}
	others := len(v.Entry.Grants.Read) > 0
	if g := v.Entry.Group; g != nil {
		for _, m := range g.Members {
			others = others || len(m.Grants.Read) > 0
		}
	}
	return ofPlugin(s, info, withOthers(version, others))
}

func projectOf(o *unstructured.Unstructured) string {
	if o == nil || len(o.GetOwnerReferences()) == 0 {
		return ""
	}
	return o.GetLabels()[apiobject.PolicyLabel]
}

// actions are what Gatekeeper calls the modes.
var actions = map[manifest.Mode]string{manifest.Enforce: "deny", manifest.Warn: "warn", manifest.Audit: "dryrun"}

// background says whether a policy of Kubewarden wants to judge what is stored.
func (w *World) background(ctx context.Context, about scan.Reference) bool {
	gvk := schema.GroupVersionKind{Group: admissionpolicy.Group, Version: "v1", Kind: about.Kind}
	o, err := w.View.Get(ctx, gvk, about.Namespace, about.Name)
	u, ok := o.(*unstructured.Unstructured)
	if err != nil || !ok {
		return true
	}
	wants, said, err := unstructured.NestedBool(u.Object, "spec", "backgroundAudit")
	return wants || !said || err != nil
}

// inCELInfo is what reports say of a ValidatingAdmissionPolicy: of one that was made of Kyverno's, that.
func inCELInfo(s policy.Standing) (info scan.Info, wanted bool) {
	o := s.Object()
	notes := o.GetAnnotations()
	info = scan.Info{
		Key: "policy/" + o.GetName(), Source: policy.ValidatingName, Policy: o.GetName(),
		Category: notes[policyobject.CategoryAnnotation], Severity: notes[policyobject.SeverityAnnotation],
		Warns: s.Does(admissionregistrationv1.Warn) && !s.Does(admissionregistrationv1.Deny) && !s.Does(admissionregistrationv1.Audit),
	}
	if o.GetLabels()[apiobject.PolicyLabel] != policyobject.Kyverno {
		return info, s.Does(admissionregistrationv1.Audit)
	}
	kind, name, _ := strings.Cut(notes[policyobject.PolicyAnnotation], " ")
	kind, _, _ = strings.Cut(kind, ".")
	info.Source, info.Policy = "Kyverno"+kind, name
	if namespace, _, ok := strings.Cut(name, "/"); ok {
		info.Space = namespace
	}
	return info, notes[policyobject.BackgroundAnnotation] != "false"
}

// judge is a policy as a scanner sees it.
type judge struct {
	info    scan.Info
	version string
	handles func(scan.Resource, admission.Operation) bool
	ask     func(context.Context, *admission.Request) (asked bool, against []scan.Objection, err error)
}

// Info implements scan.Policy.
func (j *judge) Info() scan.Info { return j.info }

// Version implements scan.Policy.
func (j *judge) Version() string { return j.version }

// About implements scan.Policy.
func (j *judge) About(r scan.Resource) admission.Operation {
	for _, op := range []admission.Operation{admission.Create, admission.Update} {
		if j.handles(r, op) {
			return op
		}
	}
	return ""
}

// Judge implements scan.Policy.
func (j *judge) Judge(ctx context.Context, r *admission.Request) (asked bool, out []scan.Objection, err error) {
	return j.ask(ctx, r)
}

func ofPlugin(s pointadmission.Standing, info scan.Info, version string) *judge {
	return &judge{
		info: info, version: version,
		handles: func(r scan.Resource, op admission.Operation) bool {
			return s.Handles(&admission.Request{
				Operation: op, Kind: r.GroupVersion().WithKind(r.Kind), Resource: r.GroupVersionResource, User: scanUser,
			})
		},
		ask: func(ctx context.Context, r *admission.Request) (asked bool, out []scan.Objection, err error) {
			asked, against, err := s.Judge(ctx, r)
			for _, text := range against {
				out = append(out, scan.Objection{Message: text})
			}
			return asked, out, err
		},
	}
}

// withImplied is a constraint that judges what objects imply, too, as it does when one is written.
func (j *judge) withImplied(s pointadmission.Standing, e *gate.Expansions) *judge {
	out := *j
	if j.version != "" {
		out.version = j.version + " " + e.Version()
	}
	out.handles = func(r scan.Resource, op admission.Operation) bool {
		return j.handles(r, op) || op == admission.Create && e.Expands(r.GroupVersion().WithKind(r.Kind))
	}
	out.ask = func(ctx context.Context, r *admission.Request) (asked bool, against []scan.Objection, err error) {
		if s.Handles(r) {
			if asked, against, err = j.ask(ctx, r); err != nil {
				return asked, against, err
			}
		}
		implied, found, err := e.Judge(ctx, s, r)
		for _, text := range found {
			against = append(against, scan.Objection{Message: text})
		}
		return asked || implied, against, err
	}
	return &out
}

func ofCEL(s policy.Standing, info scan.Info) *judge {
	return &judge{
		info: info, version: withOthers(s.Version(), s.Parameterized()),
		handles: func(r scan.Resource, op admission.Operation) bool { return s.About(r.GroupResource(), op) },
		ask: func(ctx context.Context, r *admission.Request) (asked bool, out []scan.Objection, err error) {
			asked, found, err := s.Judge(ctx, r)
			for _, f := range found {
				out = append(out, scan.Objection(f))
			}
			return asked, out, err
		},
	}
}

// ofKyverno is a policy that looks at more than the object.
func ofKyverno(s celgate.Standing) *judge {
	name := s.Name()
	if s.Namespace() != "" {
		name = s.Namespace() + "/" + name
	}
	return &judge{
		info: scan.Info{
			Key: "kyverno/" + s.Kind() + "/" + name, Source: "Kyverno" + s.Kind(), Policy: name, Warns: s.Warns(), Space: s.Namespace(),
		},
		version: withOthers(s.Version(), true),
		handles: func(r scan.Resource, op admission.Operation) bool { return s.About(r.GroupResource(), op) },
		ask: func(ctx context.Context, r *admission.Request) (asked bool, out []scan.Objection, err error) {
			asked, found, err := s.Judge(ctx, r)
			for _, f := range found {
				out = append(out, scan.Objection(f))
			}
			return asked, out, err
		},
	}
}

// ofImages is a policy about images, which asks registries: what these say may change.
func ofImages(s imagegate.Standing) *judge {
	return &judge{
		info: scan.Info{
			Key: "images/" + s.Kind() + "/" + s.Key(), Source: "Kyverno" + s.Kind(), Policy: s.Key(), Warns: s.Warns(), Space: s.Namespace(),
		},
		version: withOthers(s.Version(), true),
		handles: func(r scan.Resource, op admission.Operation) bool { return s.About(r.GroupResource(), op) },
		ask: func(ctx context.Context, r *admission.Request) (asked bool, out []scan.Objection, err error) {
			asked, against, failed := s.Judge(ctx, r)
			if ctx.Err() != nil {
				return false, nil, ctx.Err()
			}
			if failed != nil {
				return true, nil, failed
			}
			if against != "" {
				out = append(out, scan.Objection{Message: against})
			}
			return asked, out, nil
		},
	}
}

// unscanned are API groups of policies, their reports, and what comes and goes by itself.
var unscanned = []string{
	"admissionregistration.k8s.io", "coordination.k8s.io", "events.k8s.io", manifest.APIGroup, "templates.gatekeeper.sh",
	"constraints.gatekeeper.sh", "config.gatekeeper.sh", "syncset.gatekeeper.sh", "mutations.gatekeeper.sh", "expansion.gatekeeper.sh",
	externaldata.Group, admissionpolicy.Group, "policies.kyverno.io",
	string(scan.PolicyReports), string(scan.OpenReports),
}

// Resources implements scan.World.
func (w *World) Resources(context.Context) (out []scan.Resource, err error) {
	set, err := w.View.Set()
	if err != nil {
		return nil, err
	}
	rows, _ := set.Resources()
	seen := map[string]bool{}
	for _, row := range rows {
		if row.Virtual || seen[row.StoragePrefix] || slices.Contains(unscanned, row.Group) || row.Group == "" && row.Resource == "events" ||
			len(row.Versions) == 0 {
			continue
		}
		seen[row.StoragePrefix] = true
		out = append(out, scan.Resource{GroupVersionResource: row.GroupResource.WithVersion(row.Versions[0]), Kind: row.Kind})
	}
	return out, nil
}

// Items implements scan.World.
func (w *World) Items(ctx context.Context, r scan.Resource) ([]scan.Item, error) {
	reg, list, err := w.list(ctx, r.GroupVersionResource)
	if err != nil {
		return nil, err
	}
	out := make([]scan.Item, 0, len(list))
	for _, item := range list {
		namespace, _ := place(reg.Resource(), item)
		out = append(out, scan.Item{Key: item.Key, Revision: item.Revision, Namespace: namespace, Of: item})
	}
	return out, nil
}

// Request implements scan.World.
func (w *World) Request(ctx context.Context, r scan.Resource, i *scan.Item, op admission.Operation) (*admission.Request, error) {
	reg, err := w.View.Registry(r.GroupResource())
	if err != nil {
		return nil, err
	}
	item, ok := i.Of.(*watchcache.Item)
	if !ok {
		return nil, fmt.Errorf("%s is no item of the watch cache", i.Key)
	}
	o, err := reg.InVersion(ctx, item, r.Version)
	if err != nil {
		return nil, err
	}
	namespace, name := place(reg.Resource(), item)
	request := &admission.Request{
		Operation: op, Kind: r.GroupVersion().WithKind(r.Kind), Resource: r.GroupVersionResource, Namespace: namespace, Name: name,
		User: scanUser, DryRun: true, Object: o,
	}
	if op == admission.Update {
		request.OldObject = o
	}
	return request, nil
}

// list reads a resource as the watch cache has it.
func (w *World) list(ctx context.Context, r schema.GroupVersionResource) (*registry.Registry, []*watchcache.Item, error) {
	reg, err := w.View.Registry(r.GroupResource())
	if err != nil {
		return nil, nil, err
	}
	list, err := reg.List(ctx, &registry.Request{Version: r.Version}, registry.ListOptions{ResourceVersion: "0"})
	return reg, list.Items, err
}

// place is where an object is, by its key.
func place(r *api.Resource, item *watchcache.Item) (namespace, name string) {
	rest := item.Key
	if at := strings.LastIndexByte(rest, '/'); at >= 0 {
		rest, name = rest[:at], rest[at+1:]
	}
	if at := strings.LastIndexByte(rest, '/'); at >= 0 && r.Namespaced {
		namespace = rest[at+1:]
	}
	return namespace, name
}

// Labels implements scan.World. A namespace that is written without another label only costs a second look.
func (w *World) Labels(namespace string) uint64 {
	ns, err := w.Namespaces.Get(namespace)
	if err != nil {
		return 0
	}
	revision, err := strconv.ParseUint(ns.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// Known implements scan.World.
func (w *World) Known(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for _, namespace := range []string{"any", ""} {
		reg, list, err := w.list(ctx, w.Format.Resource(namespace))
		if err != nil {
			return nil, err
		}
		for _, item := range list {
			namespace, name := place(reg.Resource(), item)
			out[namespace+"/"+name] = true
		}
	}
	return out, nil
}
