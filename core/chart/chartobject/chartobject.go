// SPDX-License-Identifier: Apache-2.0

// Package chartobject is the HelmChart of the API: a Helm chart that core/controllers/helmchart keeps
// installed. Definition is the custom resource that the binary installs; Decode reads an
// object, with its defaults.
package chartobject

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/definition"
)

// Group, Version and Kind of the object.
const (
	Group   = "charts.wasmplane.dev"
	Version = "v1"
	Kind    = "HelmChart"
)

// Resource is what clients ask for.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: "helmcharts"}
}

// Spec of a HelmChart.
type Spec struct {
	Chart        string     `json:"chart,omitempty"`
	Repo         string     `json:"repo,omitempty"`
	Version      string     `json:"version,omitempty"`
	ChartContent string     `json:"chartContent,omitempty"`
	ChartFrom    *Reference `json:"chartFrom,omitempty"`
	Digest       string     `json:"digest,omitempty"`
	AuthSecret   *Named     `json:"authSecret,omitempty"`

	ReleaseName     string `json:"releaseName,omitempty"`
	TargetNamespace string `json:"targetNamespace,omitempty"`
	CreateNamespace bool   `json:"createNamespace,omitempty"`
	SkipCRDs        bool   `json:"skipCRDs,omitempty"`

	Values     json.RawMessage `json:"values,omitempty"`
	ValuesFrom []Reference     `json:"valuesFrom,omitempty"`

	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	Timeout            string `json:"timeout,omitempty"`
	Wait               *bool  `json:"wait,omitempty"`
	Retries            *int   `json:"retries,omitempty"`
	FailurePolicy      string `json:"failurePolicy,omitempty"`
	Suspend            bool   `json:"suspend,omitempty"`
}

// Named names a Secret of the object's namespace.
type Named struct {
	Name string `json:"name"`
}

// Reference is a key of a ConfigMap or Secret of the object's namespace.
type Reference struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Key      string `json:"key,omitempty"`
	Optional bool   `json:"optional,omitempty"`
}

func (r Reference) String() string { return fmt.Sprintf("key %s of %s %s", r.Key, r.Kind, r.Name) }

// Failure policies.
const (
	RollBack = "RollBack"
	Keep     = "Keep"
)

// Status of a HelmChart.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	ReleaseName        string             `json:"releaseName,omitempty"`
	ReleaseNamespace   string             `json:"releaseNamespace,omitempty"`
	Revision           int                `json:"revision,omitempty"`
	ChartName          string             `json:"chartName,omitempty"`
	ChartVersion       string             `json:"chartVersion,omitempty"`
	AppVersion         string             `json:"appVersion,omitempty"`
	Digest             string             `json:"digest,omitempty"`
	ValuesDigest       string             `json:"valuesDigest,omitempty"`
	Failures           int                `json:"failures,omitempty"`
	// Desired is a digest of what the spec asked for when it was last acted on.
	Desired string `json:"desired,omitempty"`
}

// Object is a HelmChart with its defaults filled in.
type Object struct {
	*unstructured.Unstructured
	Spec   Spec
	Status Status
	// Timeout is the spec's.
	Timeout time.Duration
}

const (
	defaultTimeout = 5 * time.Minute
	defaultRetries = 5
	defaultAccount = "default"
	valuesKey      = "values.yaml"
	chartKey       = "chart.tgz"
)

// releaseName is what Helm allows: names of objects are made of it.
var releaseName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

const releaseNameLimit = 53

// Decode reads an object and fills in defaults. It gives one that is wrong too, with what is wrong.
func Decode(o *unstructured.Unstructured) (*Object, error) {
	c := &Object{Unstructured: o}
	text, err := json.Marshal(map[string]any{"spec": o.Object["spec"], "status": o.Object["status"]})
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &struct {
		Spec   *Spec   `json:"spec"`
		Status *Status `json:"status"`
	}{&c.Spec, &c.Status}); err != nil {
		return c, fmt.Errorf("read the spec: %w", err)
	}
	s := &c.Spec
	fill := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	fill(&s.ReleaseName, o.GetName())
	fill(&s.TargetNamespace, o.GetNamespace())
	fill(&s.ServiceAccountName, defaultAccount)
	fill(&s.FailurePolicy, RollBack)
	if s.ChartFrom != nil {
		fill(&s.ChartFrom.Key, chartKey)
	}
	for i := range s.ValuesFrom {
		fill(&s.ValuesFrom[i].Key, valuesKey)
	}
	yes, retries := true, defaultRetries
	if s.Wait == nil {
		s.Wait = &yes
	}
	if s.Retries == nil {
		s.Retries = &retries
	}
	c.Timeout = defaultTimeout
	if s.Timeout != "" {
		if c.Timeout, err = time.ParseDuration(s.Timeout); err != nil {
			c.Timeout = defaultTimeout
			return c, fmt.Errorf("timeout: %q is no duration, as 90s or 5m", s.Timeout)
		}
	}
	return c, c.check()
}

// check finds what the schema cannot.
func (c *Object) check() error {
	s := &c.Spec
	switch {
	case len(s.ReleaseName) > releaseNameLimit || !releaseName.MatchString(s.ReleaseName):
		return fmt.Errorf("releaseName: %q is no name of a release, which has at most %d small letters, digits, - and .: "+
			"set releaseName, or give the object another name", s.ReleaseName, releaseNameLimit)
	case c.Timeout < time.Second || c.Timeout > 24*time.Hour:
		return fmt.Errorf("timeout: %s is not between 1s and 24h", c.Timeout)
	case c.sources() != 1:
		return errors.New("set one of chart, chartContent and chartFrom")
	}
	return nil
}

func (c *Object) sources() (n int) {
	for _, set := range []bool{c.Spec.Chart != "", c.Spec.ChartContent != "", c.Spec.ChartFrom != nil} {
		if set {
			n++
		}
	}
	return n
}

// Definition is the definition of the custom resource.
func Definition() *apiextensionsv1.CustomResourceDefinition {
	return definition.New(definition.Kind{
		Resource: Resource(), Kind: Kind, Scope: apiextensionsv1.NamespaceScoped, Categories: []string{"wasmplane"},
		Description: "HelmChart is a Helm chart that is kept installed, by the rights of a service account of its namespace.",
		Required:    []string{"spec"}, Spec: specSchema(), Status: statusSchema(),
		Columns: []definition.Column{
			definition.Show("Release", "string", ".status.releaseName", "the release's name", 0),
			definition.Show("Namespace", "string", ".status.releaseNamespace", "where the release is", 1),
			definition.Show("Revision", "integer", ".status.revision", "of the release", 0),
			definition.Show("Chart", "string", ".status.chartName", "name of the chart that is installed", 0),
			definition.Show("Version", "string", ".status.chartVersion", "of that chart", 0),
			definition.Show("Ready", "string", `.status.conditions[?(@.type=="Ready")].status`, "whether what the spec asks for is installed", 0),
			definition.Show("Reason", "string", `.status.conditions[?(@.type=="Ready")].reason`, "why it is or is not", 0),
			definition.Show("Message", "string", `.status.conditions[?(@.type=="Ready")].message`, "what is to be done", 1),
			definition.Show("Age", "date", ".metadata.creationTimestamp", "", 0),
		},
	})
}

type props = definition.Props

func reference(d string, optional bool) props {
	kinds := definition.OneOf(definition.Text("ConfigMap or Secret, of this namespace."), "ConfigMap", "Secret")
	p := definition.Object(d, map[string]props{
		"kind": kinds, "name": definition.Bounded(definition.Text("Its name."), 253),
		"key": definition.Bounded(definition.Text("The key in it."), 253),
	})
	p.Required = []string{"kind", "name"}
	if optional {
		p.Properties["optional"] = definition.Flag("Whether it may be missing.")
	}
	return p
}

func specSchema() props {
	most, least, retriesMost := int64(32), float64(0), float64(20)
	valuesFrom := reference("", true)
	valuesFrom.Description = "A document with values, as a chart's values.yaml; the key is values.yaml where none is given."
	values := definition.Open("Values for the chart, which win over those of valuesFrom. They can be read by whoever reads the object: secrets belong into valuesFrom.")
	several := definition.List(valuesFrom, "ConfigMaps and Secrets with values; later ones win. They are looked at every minute.")
	several.MaxItems = &most
	digest := definition.Text("The digest of the archive, sha256:...; another one is not installed.")
	digest.Pattern = "^sha256:[0-9a-f]{64}$"
	retries := props{Type: "integer", Description: "How often a failed install or upgrade is tried again, with growing pauses, before a change is waited for (5).", Minimum: &least, Maximum: &retriesMost}
	still := func(p props, most int64) props { // fields that name the release
		p = definition.Bounded(p, most)
		p.XValidations = apiextensionsv1.ValidationRules{{
			Rule: "self == oldSelf", Message: "it names the release and cannot change: make another HelmChart",
		}}
		return p
	}
	return props{
		Type: "object", Description: "What is installed, where, and by whose rights.",
		XValidations: apiextensionsv1.ValidationRules{
			{Rule: "[has(self.chart), has(self.chartContent), has(self.chartFrom)].filter(x, x).size() == 1", Message: "set one of chart, chartContent and chartFrom"},
			{Rule: "has(self.releaseName) == has(oldSelf.releaseName) && has(self.targetNamespace) == has(oldSelf.targetNamespace)", Message: "releaseName and targetNamespace name the release and cannot change: make another HelmChart"},
		},
		Properties: map[string]props{
			"chart":        definition.Bounded(definition.Text("oci://HOST/PATH (the tag is the version), https://HOST/PATH.tgz, or the name of a chart in repo."), 2000),
			"repo":         definition.Bounded(definition.Text("The repository that has the chart: https://HOST/PATH, with an index.yaml."), 2000),
			"version":      definition.Bounded(definition.Text("The chart's version; in a repository also a range (~1.2, >=2 <3), which is looked at when the spec changes. Empty: the newest there."), 200),
			"chartContent": definition.Text("The chart's archive (.tgz) in base64, instead of chart."),
			"chartFrom":    reference("A ConfigMap (binaryData) or Secret that has the chart's archive, instead of chart; the key is chart.tgz where none is given.", false),
			"digest":       digest,
			"authSecret": {
				Type: "object", Description: "A Secret of this namespace with username and password for the source, and ca.crt where it has an authority of its own.",
				Required: []string{"name"}, Properties: map[string]props{"name": definition.Bounded(definition.Text("Its name."), 253)},
			},
			"releaseName":        still(definition.Text("The release's name; the object's where it is empty."), releaseNameLimit),
			"targetNamespace":    still(definition.Text("The release's namespace; the object's where it is empty."), 63),
			"createNamespace":    definition.Flag("Whether targetNamespace is made where it is missing. It stays when the chart is uninstalled."),
			"skipCRDs":           definition.Flag("Whether the definitions in the chart's folder crds are left out. Those that exist are never changed, and none is deleted."),
			"values":             values,
			"valuesFrom":         several,
			"serviceAccountName": definition.Bounded(definition.Text("The service account of this namespace by whose rights everything is done (default)."), 253),
			"timeout":            definition.Bounded(definition.Text("How long an install, an upgrade or an uninstall may take (5m)."), 20),
			"wait":               definition.Flag("Whether a release is deployed only when what it made is ready (true)."),
			"retries":            retries,
			"failurePolicy":      definition.OneOf(definition.Text("RollBack: a failed upgrade goes back to the revision before, a failed install is removed. Keep: what it made stays, to be looked at."), RollBack, Keep),
			"suspend":            definition.Flag("Whether nothing is done, except to uninstall."),
		},
	}
}

// statusSchema is written by the controller alone.
func statusSchema() props {
	return definition.Object("What is installed, and what failed.", map[string]props{
		"observedGeneration": definition.Number("The generation of the spec that this is about."),
		"conditions":         definition.List(definition.Open(""), "Ready: what the spec asks for is installed. Its reason and message say what failed, and what to do."),
		"releaseName":        definition.Text("The release's name, as helm list shows it."),
		"releaseNamespace":   definition.Text("Where the release is."),
		"revision":           definition.Number("The release's revision, as helm history shows it."),
		"chartName":          definition.Text("The name of the chart that is installed."),
		"chartVersion":       definition.Text("The version of that chart."),
		"appVersion":         definition.Text("The version of what that chart installs."),
		"digest":             definition.Text("The digest of that chart's archive."),
		"valuesDigest":       definition.Text("A digest of the values that it was installed with."),
		"failures":           definition.Number("How often what the spec asks for has failed."),
		"desired":            definition.Text("A digest of what the spec asked for when it was last acted on."),
	})
}
