// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	k8sjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/simulate"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// shapes are a document of kind Shapes.
type shapes struct {
	APIVersion string  `yaml:"apiVersion"`
	Kind       string  `yaml:"kind"`
	Shapes     []shape `yaml:"shapes"`
}

// shape of nodes.
type shape struct {
	Name string `yaml:"name"`
	// Share of the nodes, beside the other shapes' shares; 0 = 1.
	Share       int               `yaml:"share"`
	Allocatable map[string]string `yaml:"allocatable"`
	Labels      map[string]string `yaml:"labels"`
	Taints      []taint           `yaml:"taints"`
	// Zones into which the nodes are dealt, in turn.
	Zones []string `yaml:"zones"`
	// Price of an hour.
	Price float64 `yaml:"price"`
}

type taint struct {
	Key    string `yaml:"key"`
	Value  string `yaml:"value"`
	Effect string `yaml:"effect"`
}

// usual is the shape of nodes about which nothing is said.
var usual = shape{Name: "node", Allocatable: map[string]string{"cpu": "16", "memory": "64Gi"}, Zones: []string{"a", "b", "c"}, Price: 0.77}

// own decodes a document of ours.
func (d *document) own(into any) error {
	err := strictyaml.Decode(d.node, into, "")
	var wrong *strictyaml.FieldError
	if errors.As(err, &wrong) {
		wrong.File = d.file
	}
	return err
}

// single reads a file of one document of a kind.
func single(path, kind string, into any) (*document, error) {
	r := &reader{ignored: map[string]int{}}
	if err := r.file(path, false); err != nil {
		return nil, err
	}
	if len(r.own) != 1 || r.own[0].kind() != kind {
		return nil, fmt.Errorf("%s: expected one document with apiVersion: %s and kind: %s", path, APIVersion, kind)
	}
	return r.own[0], r.own[0].own(into)
}

func (d *document) kind() string {
	var head struct {
		Kind string `yaml:"kind"`
	}
	_ = d.node.Decode(&head) // add has decoded it already
	return head.Kind
}

// nodes of the request.
func (m *maker) nodes(q Request) error {
	for _, d := range m.all {
		if n, ok := d.object.(*corev1.Node); ok {
			m.in.Cluster.Nodes = append(m.in.Cluster.Nodes, n)
		}
	}
	m.in.Cluster.Prices = map[string]float64{}
	if err := m.prices(q.Prices); err != nil {
		return err
	}
	if q.Nodes == 0 {
		if len(m.in.Cluster.Nodes) == 0 {
			return errors.New("there are no nodes: give --nodes NUMBER, --live, or files with nodes to --nodes-from (kubectl get nodes,pods -A -o yaml)")
		}
		return nil
	}
	list := shapes{Shapes: []shape{usual}}
	d := &document{node: &yaml.Node{}}
	if q.Shapes != "" {
		list.Shapes = nil
		var err error
		if d, err = single(q.Shapes, "Shapes", &list); err != nil {
			return err
		}
		if len(list.Shapes) == 0 {
			return d.wrong("shapes", "expected at least one shape")
		}
	}
	return m.shape(d, list.Shapes, q.Nodes)
}

// shape makes n nodes by the shapes' shares, mixed as evenly as can be.
func (m *maker) shape(d *document, list []shape, n int) error {
	made, names := make([]int, len(list)), map[string]bool{}
	sum := 0
	for i := range list {
		s := &list[i]
		path := fmt.Sprintf("shapes[%d]", i)
		switch {
		case s.Name == "" || names[s.Name]:
			return d.wrong(path+".name", "every shape needs a name of its own, found %q", s.Name)
		case s.Share < 0:
			return d.wrong(path+".share", "expected a number above 0, found %d", s.Share)
		case s.Price < 0 || math.IsNaN(s.Price):
			return d.wrong(path+".price", "expected a price of 0 or more, found %g", s.Price)
		}
		names[s.Name] = true
		s.Share = max(s.Share, 1)
		sum += s.Share
	}
	for i := range n {
		// The shape that is furthest behind its share is next.
		next := 0
		for j := range list {
			behind := func(k int) int { return list[k].Share*(i+1) - made[k]*sum }
			if behind(j) > behind(next) {
				next = j
			}
		}
		node, err := list[next].node(d, fmt.Sprintf("shapes[%d]", next), made[next])
		if err != nil {
			return err
		}
		made[next]++
		m.in.Cluster.Nodes = append(m.in.Cluster.Nodes, node)
		m.in.Cluster.Prices[node.Name] = list[next].Price
	}
	return nil
}

// node i of a shape.
func (s *shape) node(d *document, path string, i int) (*corev1.Node, error) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%04d", s.Name, i+1), Labels: map[string]string{}}}
	n.UID = types.UID("node/" + n.Name)
	maps.Copy(n.Labels, s.Labels)
	n.Labels[corev1.LabelHostname] = n.Name
	n.Labels[corev1.LabelInstanceTypeStable] = s.Name
	if len(s.Zones) > 0 {
		n.Labels[corev1.LabelTopologyZone] = s.Zones[i%len(s.Zones)]
	}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	amounts, err := d.amounts(path+".allocatable", s.Allocatable)
	if err != nil {
		return nil, err
	}
	maps.Copy(n.Status.Allocatable, amounts)
	for _, must := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q := n.Status.Allocatable[must]; q.Sign() <= 0 {
			return nil, d.wrong(path+".allocatable", "a node needs cpu and memory, found %v", s.Allocatable)
		}
	}
	n.Status.Capacity = n.Status.Allocatable
	for j, t := range s.Taints {
		effect := corev1.TaintEffect(t.Effect)
		if t.Key == "" || !slices.Contains([]corev1.TaintEffect{
			corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
			corev1.TaintEffectNoExecute,
		}, effect) {
			return nil, d.wrong(fmt.Sprintf("%s.taints[%d]", path, j), "expected a key, and NoSchedule, PreferNoSchedule or NoExecute as effect, found %q and %q", t.Key, t.Effect)
		}
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: effect})
	}
	return n, nil
}

func (d *document) amounts(path string, of map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		q, err := resource.ParseQuantity(of[name])
		if err != nil || q.Sign() < 0 {
			return nil, d.wrong(path+"."+name, "expected an amount such as 500m or 2Gi, found %q", of[name])
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, nil
}

// prices of nodes that were read, by their instance type.
func (m *maker) prices(path string) error {
	if path == "" {
		return nil
	}
	var list struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		// Prices of an hour, by the nodes' label node.kubernetes.io/instance-type.
		Prices map[string]float64 `yaml:"prices"`
	}
	if _, err := single(path, "Prices", &list); err != nil {
		return err
	}
	for _, n := range m.in.Cluster.Nodes {
		kind := n.Labels[corev1.LabelInstanceTypeStable]
		price, ok := list.Prices[kind]
		if !ok {
			return fmt.Errorf("%s: prices has none for node %s, whose label %s is %q", path, n.Name, corev1.LabelInstanceTypeStable, kind)
		}
		m.in.Cluster.Prices[n.Name] = price
	}
	return nil
}

// workload is a document of kind Workload: crowds of pods that are alike.
type workload struct {
	APIVersion string  `yaml:"apiVersion"`
	Kind       string  `yaml:"kind"`
	Pods       []crowd `yaml:"pods"`
}

type crowd struct {
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace"`
	Count     int    `yaml:"count"`
	// Arrives at random between two times since the beginning, or at one.
	Arrives between `yaml:"arrives"`
	// Lasts is how long each runs once it has its node; nothing: to the end.
	Lasts    between           `yaml:"lasts"`
	Requests map[string]string `yaml:"requests"`
	Limits   map[string]string `yaml:"limits"`
	Priority *int32            `yaml:"priority"`
	// Labels of the pods, besides app: NAME.
	Labels map[string]string `yaml:"labels"`
	// ComesBack says what its controller does when a pod is preempted: goesOn (a new one
	// runs for what was left), restart, or never. Empty: goesOn.
	ComesBack string `yaml:"comesBack"`
	// Spec of the pods, as in a manifest.
	Spec yaml.Node `yaml:"spec"`
}

// between two durations everything is as likely.
type between struct {
	From config.Duration `yaml:"from"`
	To   config.Duration `yaml:"to"`
}

func (m *maker) workload(ctx context.Context, d *document) error {
	switch kind := d.kind(); kind {
	case "Workload":
	case "Shapes":
		return d.wrong("kind", "shapes are given to --shapes")
	case "Prices":
		return d.wrong("kind", "prices are given to --prices")
	default:
		return d.wrong("kind", "expected Workload, found %q", kind)
	}
	var w workload
	if err := d.own(&w); err != nil {
		return err
	}
	names := map[string]bool{}
	for i := range w.Pods {
		c := &w.Pods[i]
		path := fmt.Sprintf("pods[%d]", i)
		if c.Name == "" || names[c.Name] {
			return d.wrong(path+".name", "every entry needs a name of its own, found %q", c.Name)
		}
		names[c.Name] = true
		if err := m.crowd(ctx, d, path, c); err != nil {
			return err
		}
	}
	return nil
}

func (m *maker) crowd(ctx context.Context, d *document, path string, c *crowd) error {
	if c.Count < 1 || c.Count > mostPods {
		return d.wrong(path+".count", "expected 1 to %d, found %d", mostPods, c.Count)
	}
	comeback, ok := map[string]simulate.Comeback{
		"": simulate.GoesOn, "goesOn": simulate.GoesOn, "restart": simulate.Restart,
		"never": simulate.Never,
	}[c.ComesBack]
	if !ok {
		return d.wrong(path+".comesBack", "expected goesOn, restart or never, found %q", c.ComesBack)
	}
	for name, b := range map[string]*between{"arrives": &c.Arrives, "lasts": &c.Lasts} {
		if b.To == 0 {
			b.To = b.From
		}
		if b.From < 0 || b.To < b.From {
			return d.wrong(path+"."+name, "expected from: 0s or later, and to: not before it, found %s and %s", time.Duration(b.From),
				time.Duration(b.To))
		}
	}
	template, err := c.template(d, path)
	if err != nil {
		return err
	}
	row, _ := m.contract.ByKind(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind())
	if bad := m.validate(ctx, row, "v1", m.complete(template)); bad != nil {
		return d.wrong(path+"."+bad.Field, "%s", bad.ErrorBody())
	}
	// It is a ReplicaSet's, so that plugins know which pods are its like.
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": c.Name}}, Template: *template},
	}
	m.hold(set)
	for i := range c.Count {
		if err := m.arrive(d, simulate.Arrival{
			At: m.draw(c.Arrives), Lasts: m.draw(c.Lasts), Pod: podOf("ReplicaSet", set, template, i), Comeback: comeback,
		}); err != nil {
			return err
		}
	}
	return nil
}

func (m *maker) draw(b between) time.Duration {
	if b.To == b.From {
		return time.Duration(b.From)
	}
	return time.Duration(b.From) + time.Duration(m.rand.Int64N(int64(b.To-b.From)))
}

// template of the crowd's pods, judged as that of a pod in a manifest.
func (c *crowd) template(d *document, path string) (*corev1.PodTemplateSpec, error) {
	if c.Namespace == "" {
		c.Namespace = metav1.NamespaceDefault
	}
	requests, err := d.amounts(path+".requests", c.Requests)
	if err != nil {
		return nil, err
	}
	limits, err := d.amounts(path+".limits", c.Limits)
	if err != nil {
		return nil, err
	}
	t := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": c.Name}}}
	maps.Copy(t.Labels, c.Labels)
	if !c.Spec.IsZero() {
		tree := map[string]any{}
		if err := c.Spec.Decode(&tree); err != nil {
			return nil, d.wrong(path+".spec", "expected a pod's spec: %v", err)
		}
		data, err := json.Marshal(tree)
		if err != nil {
			return nil, d.wrong(path+".spec", "%v", err)
		}
		strict, err := k8sjson.UnmarshalStrict(data, &t.Spec)
		if err = errors.Join(append(strict, err)...); err != nil {
			return nil, d.wrong(path+".spec."+pathIn(err), "%v", err)
		}
	}
	if len(t.Spec.Containers) == 0 {
		t.Spec.Containers = []corev1.Container{{Name: "main", Image: "simulated"}}
	}
	if len(requests) > 0 {
		t.Spec.Containers[0].Resources.Requests = requests
	}
	if len(limits) > 0 {
		t.Spec.Containers[0].Resources.Limits = limits
	}
	t.Spec.Priority = c.Priority
	return t, nil
}
