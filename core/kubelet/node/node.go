// SPDX-License-Identifier: Apache-2.0

// Package node registers a node and keeps its status: the machine's capacity, its
// conditions, its images. The status is computed often, and written only if it changed, or
// after a long time.
//
// Labels and taints are set at registration; afterwards they belong to whoever
// changes them, but for the labels that describe the machine.
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sort"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
	"github.com/wasmplane/wasmplane/core/resourcename"
	"github.com/wasmplane/wasmplane/core/run"
)

// Host tells what a node is, in the API's words.
type Host interface {
	// Facts are capacity, allocatable, addresses and system information; they are
	// asked for again every now and then.
	Facts(ctx context.Context) (*Facts, error)
}

// Facts of a machine.
type Facts struct {
	Capacity, Allocatable corev1.ResourceList
	Addresses             []corev1.NodeAddress
	Info                  corev1.NodeSystemInfo
	// Pressure by condition: the message of those that are under it.
	Pressure map[corev1.NodeConditionType]string
	// Short are the resources behind it that pods can give back.
	Short []Short
}

// Resources of a machine that pods do not ask for, and can take all of.
const (
	Inodes corev1.ResourceName = "inodes"
	PIDs   corev1.ResourceName = "pids"
)

// Short is a resource that the machine is short of: memory, ephemeral-storage, inodes or pids.
type Short struct {
	Resource             corev1.ResourceName
	Threshold, Available resource.Quantity
	// Grace is how long a pod that goes for it may take to end, at the most; zero: it is killed.
	Grace time.Duration
}

// Client of the API, as far as nodes need it.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
}

// Config of a Registrar.
type Config struct {
	Name   string
	Client Client
	Host   Host
	Engine interface {
		engine.Images
		engine.Observer
	}
	// Resources of device plugins, beside those of the machine; nil: none.
	Resources func() (capacity, allocatable corev1.ResourceList)
	// Fresh: nothing of an earlier run is known here. Extended resources that an existing node has are those of
	// a machine that had its name before.
	Fresh bool
	// Seen is the node as a watch of the API has it, since others write it, too; nil: as it was written last.
	Seen func(name string) (*corev1.Node, error)
	// Unwell is why the node is not ready though its runtime is; nil, and an answer of nil: it is.
	Unwell func() error
	// Labels and Taints at registration.
	Labels map[string]string
	Taints []corev1.Taint
	// Unschedulable at registration.
	Unschedulable bool
	// ProviderID, if there is one.
	ProviderID string
	// Port of the kubelet's server.
	Port int32
	// Every is how often the status is looked at (10 s); Report how often it is
	// written though nothing changed (5 min).
	Every, Report time.Duration
	Logger        *slog.Logger
}

// Registrar of one node.
type Registrar struct {
	cfg  Config
	last time.Time // of a write of the status; its turn's alone
	// agreed is the node that a status was found to be the same as, and the digest of that status; its turn's alone.
	agreed struct {
		node   *corev1.Node
		status uint64
	}

	mu      sync.Mutex
	turn    *rounds.Turn // nil: the status is not kept yet
	stale   bool         // it is to be looked at as soon as it is kept
	node    *corev1.Node
	local   *corev1.Node                 // as it is to be registered
	plugged map[corev1.ResourceName]bool // what device plugins have had
	facts   *Facts
	runtime error
	failing bool
}

// NewRegistrar makes a Registrar.
func NewRegistrar(cfg Config) (*Registrar, error) {
	if cfg.Name == "" || cfg.Client == nil || cfg.Host == nil || cfg.Engine == nil {
		return nil, errors.New("a node's registrar needs its name, a client, a machine and an engine")
	}
	if cfg.Every <= 0 {
		cfg.Every = 10 * time.Second
	}
	if cfg.Report <= 0 {
		cfg.Report = 5 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Registrar{cfg: cfg, plugged: map[corev1.ResourceName]bool{}}, nil
}

// UID of the node, once registered.
func (r *Registrar) UID() types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.node == nil {
		return ""
	}
	return r.node.UID
}

// IPs of the node, the primary one first.
func (r *Registrar) IPs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	if r.facts != nil {
		for _, a := range r.facts.Addresses {
			if a.Type == corev1.NodeInternalIP {
				out = append(out, a.Address)
			}
		}
	}
	return out
}

// RuntimeFailed says that the runtime does not answer, or, with nil, that it does again.
func (r *Registrar) RuntimeFailed(err error) {
	r.mu.Lock()
	changed := (err == nil) == r.failing
	r.runtime, r.failing = err, err != nil
	r.mu.Unlock()
	if changed {
		r.Refresh()
	}
}

// Refresh has the status looked at now.
func (r *Registrar) Refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stale = r.turn == nil; !r.stale {
		r.turn.Soon()
	}
}

// Look looks at the machine: IPs and Local are known from then on.
func (r *Registrar) Look(ctx context.Context) error {
	_, err := r.wanted(ctx)
	return err
}

// Local is the node as it is to be registered, for a time in which the API is away; nil
// before the machine was looked at.
func (r *Registrar) Local() *corev1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.local
}

// Register makes the node known, trying until it succeeds or ctx ends. Each try is a turn of rounds that are being done:
// thousands of nodes that share them do not all ask at once, most to be told that there are too many.
func (r *Registrar) Register(ctx context.Context, by *rounds.Rounds) error {
	retry := run.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}
	registered := make(chan struct{})
	turn := by.Add("kubelet: registration", 0, func(context.Context) time.Duration {
		err := r.register(ctx)
		switch {
		case err == nil:
			close(registered)
			return rounds.Never
		case ctx.Err() != nil:
			return rounds.Never
		}
		wait := retry.Next()
		r.cfg.Logger.WarnContext(ctx, "the node cannot be registered; trying again", "error", err, "retryIn", wait)
		return wait
	})
	defer turn.Stop()
	run.Await(ctx, registered)
	return ctx.Err()
}

func (r *Registrar) register(ctx context.Context) error {
	want, err := r.wanted(ctx)
	if err != nil {
		return err
	}
	nodes := r.cfg.Client.CoreV1().Nodes()
	got, err := nodes.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		got, err = nodes.Get(ctx, r.cfg.Name, metav1.GetOptions{})
		if err == nil {
			got, err = r.reconcile(ctx, got, want)
		}
	}
	if err != nil {
		return fmt.Errorf("register node %s: %w", r.cfg.Name, err)
	}
	r.mu.Lock()
	r.node = got
	r.mu.Unlock()
	return nil
}

// reconcile brings a node that was registered before up to date, leaving alone what others own.
func (r *Registrar) reconcile(ctx context.Context, have, want *corev1.Node) (*corev1.Node, error) {
	next := have.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, want.Labels)
	if next.Spec.ProviderID == "" {
		next.Spec.ProviderID = want.Spec.ProviderID
	}
	if !apiequality.Semantic.DeepEqual(next, have) {
		body, err := diff(have, next)
		if err != nil {
			return nil, err
		}
		if next, err = r.cfg.Client.CoreV1().Nodes().Patch(ctx, r.cfg.Name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			return nil, fmt.Errorf("patch node: %w", err)
		}
	}
	st, err := r.status(ctx, next)
	if err != nil {
		return nil, err
	}
	return r.writeStatus(ctx, next, *st)
}

func diff(have, want *corev1.Node) ([]byte, error) {
	a, err := json.Marshal(have)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	b, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	return strategicpatch.CreateTwoWayMergePatch(a, b, corev1.Node{})
}

func (r *Registrar) wanted(ctx context.Context) (*corev1.Node, error) {
	st, err := r.status(ctx, nil)
	if err != nil {
		return nil, err
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Labels: map[string]string{
			corev1.LabelHostname: r.cfg.Name, corev1.LabelOSStable: st.NodeInfo.OperatingSystem, corev1.LabelArchStable: st.NodeInfo.Architecture,
		}},
		Spec:   corev1.NodeSpec{Taints: slices.Clone(r.cfg.Taints), Unschedulable: r.cfg.Unschedulable, ProviderID: r.cfg.ProviderID},
		Status: *st,
	}
	maps.Copy(n.Labels, r.cfg.Labels)
	r.mu.Lock()
	r.local = n
	r.mu.Unlock()
	return n, nil
}

// Run keeps the status until ctx ends.
func (r *Registrar) Run(ctx context.Context) error {
	by := rounds.New(1)
	r.Join(ctx, by)
	return by.Run(ctx)
}

// Join is Run by rounds.
func (r *Registrar) Join(ctx context.Context, by *rounds.Rounds) {
	r.last = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.cfg.Every
	if r.stale {
		first = 0
	}
	r.turn = by.Add("kubelet: node status", first, func(context.Context) time.Duration {
		wrote, err := r.refresh(ctx, time.Since(r.last) >= r.cfg.Report)
		switch {
		case err != nil && ctx.Err() == nil:
			r.cfg.Logger.WarnContext(ctx, "the node's status cannot be written", "error", err)
		case wrote:
			r.last = time.Now()
		}
		return r.cfg.Every
	})
	context.AfterFunc(ctx, r.turn.Stop)
}

func (r *Registrar) refresh(ctx context.Context, force bool) (bool, error) {
	have, there := r.newest()
	st, err := r.status(ctx, have)
	if err != nil {
		return false, err
	}
	// The write of a node that somebody deleted finds that out, and it is registered again.
	if !force && there && r.unchanged(have, st) {
		return false, nil
	}
	got, err := r.writeStatus(ctx, have, *st)
	if apierrors.IsNotFound(err) {
		return true, r.register(ctx)
	}
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	r.node = got
	r.mu.Unlock()
	return true, nil
}

// newest is the node as it was written or seen last, whichever is later, and whether it is
// there, as far as is seen.
func (r *Registrar) newest() (node *corev1.Node, there bool) {
	r.mu.Lock()
	written := r.node
	r.mu.Unlock()
	if r.cfg.Seen == nil {
		return written, true
	}
	seen, err := r.cfg.Seen(r.cfg.Name)
	if err != nil { // it was not seen yet, or is gone
		return written, !apierrors.IsNotFound(err)
	}
	if order, err := resourceversion.CompareResourceVersion(seen.ResourceVersion, written.ResourceVersion); err != nil || order <= 0 {
		return written, true
	}
	return seen, true
}

// seed of digests of statuses.
var seed = maphash.MakeSeed()

// unchanged is same, by the digest of what was compared with this state of the node before. Most nodes are as they were ten
// seconds ago, and to compare statuses by reflection is most of what a look at an idle simulated node costs.
func (r *Registrar) unchanged(have *corev1.Node, st *corev1.NodeStatus) bool {
	l := lasting(st)
	encoded, err := l.Marshal()
	if err != nil {
		return same(&have.Status, st)
	}
	digest := maphash.Bytes(seed, encoded)
	if r.agreed.node == have && r.agreed.status == digest {
		return true
	}
	if !same(&have.Status, st) {
		return false
	}
	r.agreed.node, r.agreed.status = have, digest
	return true
}

// same leaves out the heartbeats.
func same(a, b *corev1.NodeStatus) bool {
	x, y := lasting(a), lasting(b)
	return apiequality.Semantic.DeepEqual(&x, &y)
}

// lasting is what a status says but for its heartbeats and what others write. It shares all else with the status.
func lasting(st *corev1.NodeStatus) corev1.NodeStatus {
	l := *st
	l.Conditions = slices.Clone(st.Conditions)
	sort.Slice(l.Conditions, func(i, j int) bool { return l.Conditions[i].Type < l.Conditions[j].Type })
	for i := range l.Conditions {
		l.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	l.VolumesAttached, l.VolumesInUse = nil, nil
	return l
}

func (r *Registrar) writeStatus(ctx context.Context, have *corev1.Node, st corev1.NodeStatus) (*corev1.Node, error) {
	before := &corev1.Node{Status: have.Status}
	after := &corev1.Node{Status: st}
	// What others write stays.
	after.Status.VolumesAttached, after.Status.VolumesInUse = have.Status.VolumesAttached, have.Status.VolumesInUse
	body, err := diff(before, after)
	if err != nil {
		return nil, err
	}
	got, err := r.cfg.Client.CoreV1().Nodes().Patch(ctx, r.cfg.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("patch status of node %s: %w", r.cfg.Name, err)
	}
	return got, nil
}

// status of the node now; times of transition come from have.
func (r *Registrar) status(ctx context.Context, have *corev1.Node) (*corev1.NodeStatus, error) {
	facts, err := r.cfg.Host.Facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the machine: %w", err)
	}
	r.mu.Lock()
	r.facts = facts
	runtimeErr := r.runtime
	r.mu.Unlock()
	st := &corev1.NodeStatus{Capacity: facts.Capacity, Allocatable: facts.Allocatable, Addresses: facts.Addresses, NodeInfo: facts.Info}
	r.extend(st, have)
	st.DaemonEndpoints.KubeletEndpoint.Port = r.cfg.Port
	if name, version, err := r.cfg.Engine.Version(ctx); err == nil {
		st.NodeInfo.ContainerRuntimeVersion = name + "://" + version
	} else if have != nil {
		st.NodeInfo.ContainerRuntimeVersion = have.Status.NodeInfo.ContainerRuntimeVersion
	}
	st.Images = r.images(ctx)
	st.RuntimeHandlers = r.handlers(ctx, have)
	st.Features = r.features(ctx, have)
	st.DeclaredFeatures = declared(done, facts.Info.KubeletVersion)
	if runtimeErr == nil {
		runtimeErr = r.cfg.Engine.Ready(ctx)
	}
	r.conditions(st, have, facts, r.unwell(runtimeErr))
	return st, nil
}

// extend adds the extended resources: those of device plugins, and those that others have written into the node's
// capacity, all of which can be allocated. Of one that a plugin has had, and has no more, there is none.
func (r *Registrar) extend(st *corev1.NodeStatus, have *corev1.Node) {
	capacity, allocatable := corev1.ResourceList{}, corev1.ResourceList{}
	maps.Copy(capacity, st.Capacity) // the machine's own are shared
	maps.Copy(allocatable, st.Allocatable)
	st.Capacity, st.Allocatable = capacity, allocatable
	var devices, healthy corev1.ResourceList
	if r.cfg.Resources != nil {
		devices, healthy = r.cfg.Resources()
	}
	maps.Copy(capacity, devices)
	maps.Copy(allocatable, healthy)
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range devices {
		r.plugged[name] = true
	}
	if have == nil {
		return
	}
	former := r.cfg.Fresh && r.node == nil // another machine's
	for name, q := range have.Status.Capacity {
		if _, known := capacity[name]; known || !resourcename.Extended(string(name)) {
			continue
		}
		if former || r.plugged[name] {
			q = *resource.NewQuantity(0, resource.DecimalSI)
		}
		capacity[name], allocatable[name] = q, q
	}
}

// handlers that a RuntimeClass may name here, in the order of their names; as they were when the runtime doesn't answer.
func (r *Registrar) handlers(ctx context.Context, have *corev1.Node) []corev1.NodeRuntimeHandler {
	l, ok := r.cfg.Engine.(engine.HandlerLister)
	if !ok {
		return nil
	}
	list, err := l.Handlers(ctx)
	if err != nil {
		if have == nil {
			return nil
		}
		return have.Status.RuntimeHandlers
	}
	var out []corev1.NodeRuntimeHandler
	for _, h := range list {
		out = append(out, corev1.NodeRuntimeHandler{Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: ptr.To(h.GetFeatures().GetRecursiveReadOnlyMounts()),
			UserNamespaces:          ptr.To(h.GetFeatures().GetUserNamespaces()),
		}})
	}
	slices.SortFunc(out, func(a, b corev1.NodeRuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// features of the runtime that pods' security contexts need; as they were when it doesn't answer.
func (r *Registrar) features(ctx context.Context, have *corev1.Node) *corev1.NodeFeatures {
	t, ok := r.cfg.Engine.(engine.FeatureTeller)
	if !ok {
		return nil
	}
	got, err := t.Features(ctx)
	if err != nil && have != nil {
		return have.Status.Features
	}
	if err != nil || got == nil {
		return nil
	}
	return &corev1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(got.GetSupplementalGroupsPolicy())}
}

// images of the node, the largest first, as many as upstream tells of.
func (r *Registrar) images(ctx context.Context) []corev1.ContainerImage {
	const most = 50
	list, err := r.cfg.Engine.ListImages(ctx)
	if err != nil {
		return nil
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].Size != list[j].Size {
			return list[i].Size > list[j].Size
		}
		return list[i].Id < list[j].Id
	})
	var out []corev1.ContainerImage
	for _, img := range list[:min(len(list), most)] {
		const names = 5
		all := slices.Concat(img.RepoDigests, img.RepoTags)
		if len(all) == 0 {
			continue
		}
		out = append(out, corev1.ContainerImage{Names: all[:min(len(all), names)], SizeBytes: int64(img.Size)})
	}
	return out
}

// unwell is all for which the node is not ready; nil if it is.
func (r *Registrar) unwell(runtimeErr error) error {
	var errs []error
	if runtimeErr != nil {
		errs = append(errs, fmt.Errorf("container runtime is not ready: %w", runtimeErr))
	}
	if r.cfg.Unwell != nil {
		errs = append(errs, r.cfg.Unwell())
	}
	return utilerrors.NewAggregate(errs) // as upstream joins them
}

func (r *Registrar) conditions(st *corev1.NodeStatus, have *corev1.Node, facts *Facts, unwell error) {
	now := metav1.NewTime(time.Now()).Rfc3339Copy()
	set := func(t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) {
		c := corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
		if have != nil {
			for _, o := range have.Status.Conditions {
				if o.Type == t && o.Status == s {
					c.LastTransitionTime = o.LastTransitionTime
				}
			}
		}
		st.Conditions = append(st.Conditions, c)
	}
	for _, p := range []struct {
		t              corev1.NodeConditionType
		bad, good, msg string
	}{
		{corev1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
		{corev1.NodeDiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		{corev1.NodePIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID", "kubelet has sufficient PID available"},
	} {
		if msg, under := facts.Pressure[p.t]; under {
			set(p.t, corev1.ConditionTrue, p.bad, msg)
		} else {
			set(p.t, corev1.ConditionFalse, p.good, p.msg)
		}
	}
	if unwell != nil {
		set(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", unwell.Error())
	} else {
		set(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	}
	if have == nil {
		return
	}
	for _, o := range have.Status.Conditions {
		if !slices.ContainsFunc(st.Conditions, func(c corev1.NodeCondition) bool { return c.Type == o.Type }) {
			st.Conditions = append(st.Conditions, o) // another's
		}
	}
}
