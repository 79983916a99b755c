// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Binding is the name under which policies call their host.
const Binding = "kubewarden"

// Calls answers what a policy asks its host.
type Calls struct {
	entry  *manifest.Entry
	caller *hostfn.Caller
	log    *slog.Logger
}

// NewCalls makes the host calls of an entry's policy.
func NewCalls(f *hostfn.Functions, e *manifest.Entry, log *slog.Logger) *Calls {
	open := *e // capabilities open what the entry's other grants say nothing of
	g := &open.Grants
	opens := func(path string) bool { return len(g.Capabilities) > 0 && e.Opens(path) }
	if opens("net/v1/dns_lookup_host") && len(g.DNS) == 0 {
		g.DNS = []string{"*"}
	}
	if opens("kubernetes/can_i") {
		g.AccessReview = true
	}
	if opens("crypto/v1/is_certificate_trusted") {
		g.Certificates = true
	}
	if len(g.Images.Registries)+len(g.Images.PlainHTTP) == 0 {
		for _, path := range imageCalls {
			if opens(path) {
				g.Images.Registries = []string{"*"}
			}
		}
	}
	return &Calls{entry: e, caller: f.For(&open), log: log.With("plugin", e.Name)}
}

var imageCalls = []string{"oci/v1/manifest_digest", "oci/v1/oci_manifest", "oci/v1/oci_manifest_config", "oci/v1/verify", "oci/v2/verify"}

// Call carries out one call. Its error's text is for the policy.
func (c *Calls) Call(ctx context.Context, binding, namespace, operation string, payload []byte) ([]byte, error) {
	if binding != Binding {
		return nil, fmt.Errorf("unknown binding: %s", short(binding))
	}
	path := namespace + "/" + operation
	calls := map[string]func(context.Context, []byte) (any, error){
		"kubernetes/get_resource":                c.get,
		"kubernetes/list_resources_by_namespace": c.list,
		"kubernetes/list_resources_all":          c.list,
		"kubernetes/can_i":                       c.canI,
		"net/v1/dns_lookup_host":                 c.lookup,
		"crypto/v1/is_certificate_trusted":       c.trusted,
		"oci/v1/manifest_digest":                 c.digest,
		"oci/v1/oci_manifest":                    c.manifest,
		"oci/v1/oci_manifest_config":             c.config,
		"oci/v1/verify":                          c.verify,
		"oci/v2/verify":                          c.verify,
	}
	if path == "tracing/log" {
		return []byte("null"), c.trace(ctx, payload)
	}
	call, ok := calls[path]
	if !ok {
		return nil, fmt.Errorf("unknown operation: %s", short(path))
	}
	if err := c.allowed(path); err != nil {
		return nil, err
	}
	reply, err := call(ctx, payload)
	var refused *host.RefusedError
	if errors.As(err, &refused) {
		return nil, &host.RefusedError{Reason: fmt.Sprintf("the capability %s is missing: %s", path, refused.Reason)}
	}
	if err != nil {
		return nil, err
	}
	if raw, ok := reply.(json.RawMessage); ok {
		return raw, nil
	}
	return json.Marshal(reply)
}

// allowed holds a call against the list of capabilities, where the entry has one.
func (c *Calls) allowed(path string) error {
	reads := strings.HasPrefix(path, "kubernetes/") && path != "kubernetes/can_i"
	if reads || c.entry.Opens(path) {
		return nil // what is read goes by grants.read
	}
	return &host.RefusedError{Reason: fmt.Sprintf("the capability %s is missing: grant it with grants.capabilities: [%s]", path, path)}
}

func short(s string) string { return clip([]byte(s)) }

func decode(payload []byte, v any) error {
	if err := json.Unmarshal(payload, v); err != nil {
		return fmt.Errorf("the payload cannot be read: %w", plainly(err))
	}
	return nil
}

// trace takes a log event; its level and message go into ours, the rest with it.
func (c *Calls) trace(ctx context.Context, payload []byte) error {
	var event map[string]any
	if err := decode(payload, &event); err != nil {
		return err
	}
	level := slog.LevelInfo
	if text, ok := event["level"].(string); ok {
		if strings.EqualFold(text, "trace") {
			text = "debug"
		}
		if strings.EqualFold(text, "warning") {
			text = "warn"
		}
		_ = level.UnmarshalText([]byte(text)) // an unknown level is information
	}
	message, _ := event["message"].(string)
	delete(event, "message")
	delete(event, "level")
	rest, err := json.Marshal(event)
	if err != nil {
		return err
	}
	c.log.Log(ctx, level, "a policy says", "message", clipTo(message, 4096), "event", clipTo(string(rest), 4096))
	return nil
}

func clipTo(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// resourceRequest asks for one object or for a list.
type resourceRequest struct {
	APIVersion    string   `json:"api_version"`
	Kind          string   `json:"kind"`
	Name          string   `json:"name"`
	Namespace     *string  `json:"namespace"`
	LabelSelector *string  `json:"label_selector"`
	FieldSelector *string  `json:"field_selector"`
	FieldMasks    []string `json:"field_masks"`
	DisableCache  bool     `json:"disable_cache"`
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (c *Calls) get(ctx context.Context, payload []byte) (any, error) {
	var q resourceRequest
	if err := decode(payload, &q); err != nil {
		return nil, err
	}
	r, err := c.caller.GetObject(ctx, hostfn.GetRequest{
		Target: hostfn.Target{APIVersion: q.APIVersion, Kind: q.Kind}, Namespace: text(q.Namespace), Name: q.Name, Fresh: q.DisableCache,
	})
	if err != nil {
		return nil, err
	}
	if r.Object == nil {
		return nil, fmt.Errorf("cannot find %s/%s named %q inside of namespace %q", q.APIVersion, q.Kind, q.Name, text(q.Namespace))
	}
	return mask(r.Object, q.FieldMasks)
}

func (c *Calls) list(ctx context.Context, payload []byte) (any, error) {
	var q resourceRequest
	if err := decode(payload, &q); err != nil {
		return nil, err
	}
	r, err := c.caller.ListObjects(ctx, hostfn.ListRequest{
		Target: hostfn.Target{APIVersion: q.APIVersion, Kind: q.Kind}, Namespace: text(q.Namespace),
		LabelSelector: text(q.LabelSelector), FieldSelector: text(q.FieldSelector), Fresh: q.DisableCache,
	})
	if err != nil {
		return nil, err
	}
	items := make([]json.RawMessage, len(r.Items))
	for i, item := range r.Items {
		if items[i], err = mask(item, q.FieldMasks); err != nil {
			return nil, err
		}
	}
	return map[string]any{
		"apiVersion": q.APIVersion, "kind": q.Kind + "List",
		"metadata": map[string]string{"resourceVersion": r.ResourceVersion}, "items": items,
	}, nil
}

// mask keeps the fields of an object that were asked for: dotted paths that go
// through lists item by item. Kind and version are always there.
func mask(object json.RawMessage, paths []string) (json.RawMessage, error) {
	if len(paths) == 0 {
		return object, nil
	}
	tree := map[string]any{"apiVersion": nil, "kind": nil}
	for _, p := range paths {
		at := tree
		steps := strings.Split(strings.TrimPrefix(p, "."), ".")
		for i, s := range steps {
			below, known := at[s]
			if known && below == nil {
				break // the whole of it was asked for
			}
			if i == len(steps)-1 {
				at[s] = nil
				break
			}
			if !known {
				below = map[string]any{}
				at[s] = below
			}
			at = below.(map[string]any)
		}
	}
	var v any
	if err := unmarshal(object, &v); err != nil {
		return nil, err
	}
	return json.Marshal(prune(v, tree))
}

func prune(v any, tree map[string]any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, below := range tree {
			value, there := v[name]
			if !there {
				continue
			}
			if below == nil {
				out[name] = value
			} else {
				out[name] = prune(value, below.(map[string]any))
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = prune(v[i], tree)
		}
		return out
	}
	return v
}

// canIRequest asks who may do what; attributes come in either spelling.
type canIRequest struct {
	Review struct {
		User       string                              `json:"user"`
		Groups     []string                            `json:"groups"`
		Attributes *authorizationv1.ResourceAttributes `json:"resource_attributes"`
		Camel      *authorizationv1.ResourceAttributes `json:"resourceAttributes"`
	} `json:"subject_access_review"`
}

func (c *Calls) canI(ctx context.Context, payload []byte) (any, error) {
	var q canIRequest
	if err := decode(payload, &q); err != nil {
		return nil, err
	}
	spec := authorizationv1.SubjectAccessReviewSpec{User: q.Review.User, Groups: q.Review.Groups, ResourceAttributes: q.Review.Attributes}
	if spec.ResourceAttributes == nil {
		spec.ResourceAttributes = q.Review.Camel
	}
	return c.caller.Review(ctx, spec)
}

func (c *Calls) lookup(ctx context.Context, payload []byte) (any, error) {
	var name string
	if err := decode(payload, &name); err != nil {
		return nil, err
	}
	ips, err := c.caller.LookupHost(ctx, name)
	return map[string]any{"ips": ips}, err
}

// certificate is one, as PEM or DER.
type certificate struct {
	Encoding string `json:"encoding"`
	Data     Bytes  `json:"data"`
}

func (k certificate) pem() (string, error) {
	switch strings.ToLower(k.Encoding) {
	case "pem":
		return string(k.Data), nil
	case "der":
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.Data})), nil
	}
	return "", fmt.Errorf("encoding: expected Pem or Der, found %q", short(k.Encoding))
}

func (c *Calls) trusted(ctx context.Context, payload []byte) (any, error) {
	var q struct {
		Cert     certificate   `json:"cert"`
		Chain    []certificate `json:"cert_chain"`
		NotAfter *string       `json:"not_after"`
	}
	if err := decode(payload, &q); err != nil {
		return nil, err
	}
	var r hostfn.CertificateRequest
	var err error
	if r.Certificate, err = q.Cert.pem(); err != nil {
		return nil, fmt.Errorf("cert: %w", err)
	}
	for i, k := range q.Chain {
		one, err := k.pem()
		if err != nil {
			return nil, fmt.Errorf("cert_chain[%d]: %w", i, err)
		}
		r.Chain += strings.TrimSuffix(one, "\n") + "\n"
	}
	if r.At = text(q.NotAfter); r.At == "" {
		r.At = begins(r.Certificate + "\n" + r.Chain) // without a time, none has run out
	}
	reply, err := c.caller.CertificateTrusted(ctx, r)
	return map[string]any{"trusted": reply.Trusted, "reason": reply.Reason}, err
}

// begins is when the youngest of some certificates began to be valid; "" where none can be read.
func begins(text string) string {
	var latest time.Time
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if from, err := notBefore(block.Bytes); err == nil && from.After(latest) {
			latest = from
		}
	}
	if latest.IsZero() {
		return ""
	}
	return latest.Format(time.RFC3339)
}

func (c *Calls) digest(ctx context.Context, payload []byte) (any, error) {
	var image string
	if err := decode(payload, &image); err != nil {
		return nil, err
	}
	digest, err := c.caller.ImageDigest(ctx, image)
	return map[string]string{"digest": digest}, err
}

func (c *Calls) manifest(ctx context.Context, payload []byte) (any, error) {
	var image string
	if err := decode(payload, &image); err != nil {
		return nil, err
	}
	m, err := c.caller.ImageManifest(ctx, image)
	return m.Manifest, err
}

func (c *Calls) config(ctx context.Context, payload []byte) (any, error) {
	var image string
	if err := decode(payload, &image); err != nil {
		return nil, err
	}
	m, err := c.caller.ImageManifest(ctx, image)
	if err != nil {
		return nil, err
	}
	k, err := c.caller.ImageConfig(ctx, image)
	return map[string]any{"manifest": m.Manifest, "digest": k.Digest, "config": k.Config}, err
}
