// SPDX-License-Identifier: Apache-2.0

package realtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	"github.com/wasmplane/wasmplane/core/kubelet/podlifecycle"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
	"github.com/wasmplane/wasmplane/core/kubelet/server"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/run"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }

// world is a real node, and a client that holds its pods.
type world struct {
	t      *testing.T
	node   *nodetest.Node
	client kubernetes.Interface
	server *server.Server
	addr   string
	logs   string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "token" {
			return false, nil, nil
		}
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token:               "a-token",
			ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
		}}, nil
	})
	w := &world{t: t, node: nodetest.Start(t), client: client, logs: filepath.Join(t.TempDir(), "logs")}
	w.serve()
	return w
}

func (w *world) root() string { return filepath.Join(w.node.Config.Dir, "kubelet") }

type anyone struct{}

func (anyone) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: "tester"}}, true, nil
}

func (anyone) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

func (w *world) serve() {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	certs := httptest.NewUnstartedServer(nil)
	certs.StartTLS()
	conf := &tls.Config{Certificates: certs.TLS.Certificates}
	certs.Close()
	w.server, err = server.New(server.Config{
		Listener: l, TLS: conf, Authenticator: anyone{},
		Authorizer: authorizer.AuthorizerFunc(anyone{}.Authorize),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.addr = l.Addr().String()
	w.background("server", w.server.Run)
}

func (w *world) background(name string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}()
	stop = func() { cancel(); <-done }
	w.t.Cleanup(stop)
	return stop
}

func (w *world) kubelet() (stop func()) {
	w.t.Helper()
	return w.kubeletOn(w.node.Engine())
}

func (w *world) kubeletOn(e engine.Engine) (stop func()) {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.t.Output(), nil))
	host, err := linuxhost.New(linuxhost.Config{
		NodeName: "n1", RootDir: w.root(), LogRoot: w.logs, LinkRoot: filepath.Join(w.logs, "containers"),
		CgroupRoot: w.node.Names().PodsCgroup(), NodeIPs: []string{"127.0.0.1"}, Logger: log,
		Evict: threshold.Settings{Hard: map[string]string{threshold.DiskAvailable: "0"}},
	}) // what the machine has is not what is tested
	if err != nil {
		w.t.Fatal(err)
	}
	held := objects.New(w.client, log)
	volumes, err := volume.New(volume.Config{
		RootDir: w.root(), Client: w.client, Objects: held, Logger: log,
		Allocatable: func() corev1.ResourceList {
			facts, err := host.Facts(w.t.Context())
			if err != nil {
				return nil
			}
			return facts.Allocatable
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	held.Changed(volumes.Changed)
	k, err := kubelet.New(kubelet.Config{
		NodeName: "n1", Client: w.client, Engine: e, Host: host, Volumes: volumes, Handler: probe.NewHandler(e), Objects: held,
		Node: node.Config{Port: w.server.Port()}, ClusterDNS: []string{"10.96.0.10"},
		Delays: podlifecycle.Options{CrashInitial: 100 * time.Millisecond, CrashMax: time.Second, RetryInitial: 50 * time.Millisecond},
		Logger: log,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	stop = w.background("kubelet", func(ctx context.Context) error {
		defer w.server.Add(k)()
		return run.Together(ctx, k.Run, held.Run, volumes.Run)
	})
	select {
	case <-k.Ready():
	case <-time.After(patience):
		w.t.Fatal("the kubelet is not ready")
	}
	return stop
}

func (w *world) create(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	grace := int64(5)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: "n1", RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			ServiceAccountName: "default", DNSPolicy: corev1.DNSClusterFirst,
			Containers: []corev1.Container{{
				Name: "main", Image: nodetest.Image, ImagePullPolicy: corev1.PullIfNotPresent,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, c := range change {
		c(p)
	}
	got, err := w.client.CoreV1().Pods("default").Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

func (w *world) get(name string) *corev1.Pod {
	p, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return p
}

// patience is generous: real containers start on a machine that may be busy.
const patience = 2 * time.Minute

// changes tells of everything that happens to pods from now on.
func (w *world) changes() watch.Interface {
	w.t.Helper()
	changes, err := w.client.CoreV1().Pods("default").Watch(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return changes
}

func (w *world) until(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	changes := w.changes()
	defer changes.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		p := w.get(name)
		if p != nil && ok(p) {
			return p
		}
		select {
		case <-changes.ResultChan():
		case <-limit.C:
			events, _ := w.client.CoreV1().Events("default").List(w.t.Context(), metav1.ListOptions{})
			for _, e := range events.Items {
				w.t.Logf("event %s %s %s", e.InvolvedObject.Name, e.Reason, e.Message)
			}
			if p != nil {
				w.t.Logf("status %+v", p.Status)
			}
			w.t.Fatalf("pod %s is never %s", name, what)
		}
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (w *world) remove(name string) {
	w.t.Helper()
	p := w.get(name).DeepCopy()
	now, grace := metav1.Now(), int64(1)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	if _, err := w.client.CoreV1().Pods("default").Update(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	nodetest.Eventually(w.t, "pod "+name+" is gone", func() bool {
		_, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// read a file inside a container.
func (w *world) read(p *corev1.Pod, container, file string) string {
	w.t.Helper()
	out, _ := w.node.Exec(w.t, id(p, container), "stat", file)
	return out
}

func id(p *corev1.Pod, container string) string {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == container {
			_, after, _ := strings.Cut(c.ContainerID, "://")
			return after
		}
	}
	return ""
}

// A pod with everything that a pod commonly has, and nothing left of it.
func TestAPodsLife(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	mustCreate(t, func() error {
		_, err := w.client.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "conf", ResourceVersion: "1"},
				Data:       map[string]string{"color": "blue"},
			}, metav1.CreateOptions{})
		return err
	})
	mustCreate(t, func() error {
		_, err := w.client.CoreV1().Secrets("default").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sec"}, Data: map[string][]byte{"key": []byte("secret")}},
			metav1.CreateOptions{})
		return err
	})
	mustCreate(t, func() error {
		_, err := w.client.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		}, metav1.CreateOptions{})
		return err
	})
	stop := w.kubelet()
	w.create("full", full)
	p := w.until("full", "ready", ready)
	if p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" || p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("status %+v", p.Status)
	}
	for file, want := range map[string]string{
		"/conf/color":    "blue",
		"/sec/key":       "secret",
		"/all/token":     "a-token",
		"/all/labels":    `app="full"`,
		"/shared/hello":  "from init",
		"/sub/file":      "inside",
		"/etc/hostname":  "full",
		"/conf-one/blue": "blue",
	} {
		if got := w.read(p, "main", file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	for name, want := range map[string]string{
		"COLOR": "blue", "KEY": "secret", "IP": p.Status.PodIP, "NODE": "n1", "GREETING": "hello blue", "CPU": "1",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
	} {
		if got, _ := w.node.Exec(t, id(p, "main"), "env", name); got != want {
			t.Errorf("$%s is %q, want %q", name, got, want)
		}
	}
	if hosts := w.read(p, "main", "/etc/hosts"); !strings.Contains(hosts, p.Status.PodIP+"\tfull") || !strings.Contains(hosts,
		"1.2.3.4\tfriend") {
		t.Errorf("hosts file %q", hosts)
	}
	if resolv := w.read(p, "main", "/etc/resolv.conf"); !strings.Contains(resolv, "nameserver 10.96.0.10") || !strings.Contains(resolv,
		"default.svc.cluster.local svc.cluster.local cluster.local") {
		t.Errorf("resolv.conf %q", resolv)
	}
	if _, code := w.node.Exec(t, id(p, "main"), "write", "/conf/color", "red"); code == 0 {
		t.Error("a configMap volume can be written to")
	}
	log := filepath.Join(w.logs, "default_full_uid-full", "main", "0.log")
	nodetest.Eventually(t, "the log says something",
		func() bool { b, _ := os.ReadFile(log); return strings.Contains(string(b), "serving on") })

	// Contents follow the API.
	cm, err := w.client.CoreV1().ConfigMaps("default").Get(ctx, "conf", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data["color"], cm.ResourceVersion = "green", "2"
	if _, err := w.client.CoreV1().ConfigMaps("default").Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "the volume follows the ConfigMap", func() bool { return w.read(p, "main", "/conf/color") == "green" })

	// Resources change in place.
	bigger := w.get("full").DeepCopy()
	bigger.Generation++
	bigger.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("96Mi")
	if _, err := w.client.CoreV1().Pods("default").Update(ctx, bigger, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("full", "resized", func(p *corev1.Pod) bool {
		r := p.Status.ContainerStatuses[0].Resources
		return r != nil && r.Limits.Memory().String() == "96Mi"
	})
	if st, err := w.node.Engine().ContainerStatus(ctx, id(p, "main")); err != nil ||
		st.GetResources().GetLinux().GetMemoryLimitInBytes() != 96<<20 {
		t.Errorf("%+v %v", st.GetResources(), err)
	}

	// A kubelet that starts anew restarts nothing.
	stop()
	w.kubelet()
	if again := w.until("full", "ready", ready); id(again, "main") != id(p, "main") || again.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("restarted: %+v", again.Status.ContainerStatuses)
	}
	w.remove("full")
	w.nothingLeft("uid-full")
}

func full(p *corev1.Pod) {
	optional := true
	main := &p.Spec.Containers[0]
	p.Spec.Volumes = []corev1.Volume{
		{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}},
		{Name: "one", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}, Items: []corev1.KeyToPath{{Key: "color", Path: "blue"}}}}},
		{Name: "gone", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}, Optional: &optional}}},
		{Name: "sec", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "sec"}}},
		{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
		}}}},
	}
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"friend"}}}
	p.Spec.InitContainers = []corev1.Container{
		{Name: "init", Image: nodetest.Image, Command: []string{"/testprogram", "write", "/shared/hello", "from init"}, VolumeMounts: []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}},
		{Name: "init-sub", Image: nodetest.Image, Command: []string{"/testprogram", "write", "/sub/file", "inside"}, VolumeMounts: []corev1.VolumeMount{{Name: "memory", MountPath: "/sub", SubPath: "some/where"}}},
	}
	main.VolumeMounts = []corev1.VolumeMount{
		{Name: "conf", MountPath: "/conf"},
		{Name: "one", MountPath: "/conf-one"},
		{Name: "sec", MountPath: "/sec"},
		{Name: "all", MountPath: "/all"},
		{Name: "shared", MountPath: "/shared"},
		{Name: "memory", MountPath: "/sub", SubPathExpr: "some/$(WHERE)"},
		{Name: "gone", MountPath: "/gone"},
	}
	main.Env = []corev1.EnvVar{
		{Name: "COLOR", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}, Key: "color"}}},
		{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "sec"}, Key: "key"}}},
		{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "requests.cpu"}}},
		{Name: "GREETING", Value: "hello $(COLOR)"},
		{Name: "WHERE", Value: "where"},
	}
	main.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
	}
	main.ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 1,
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(80)}},
	}
	main.LivenessProbe = &corev1.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 3,
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/testprogram", "sh", "true"}}},
	}
	main.Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/testprogram", "write", "/shared/poststart", "ran"}}},
		PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/testprogram", "write", "/shared/prestop", "ran"}}},
	}
}

// nothingLeft checks that a pod left nothing on the machine.
func (w *world) nothingLeft(uid string) {
	w.t.Helper()
	nodetest.Eventually(w.t, "nothing is left of the pod", func() bool {
		c, _ := w.node.Engine().ListContainers(w.t.Context())
		s, _ := w.node.Engine().ListSandboxes(w.t.Context())
		_, dir := os.Stat(filepath.Join(w.root(), "pods", uid))
		logs, _ := filepath.Glob(filepath.Join(w.logs, "*"+uid+"*"))
		links, _ := filepath.Glob(filepath.Join(w.logs, "containers", "*"))
		return len(c)+len(s)+len(logs)+len(links) == 0 && os.IsNotExist(dir)
	})
	mounts, err := linuxhost.MountsBelow(w.root())
	if err != nil || len(mounts) > 0 {
		w.t.Errorf("mounts left: %v, %v", mounts, err)
	}
	left, _ := filepath.Glob("/sys/fs/cgroup/*" + w.node.Names().PodsCgroup() + "/*/pod*")
	more, _ := filepath.Glob("/sys/fs/cgroup" + w.node.Names().PodsCgroup() + "/*/pod*")
	if left = append(left, more...); len(left) > 0 {
		w.t.Errorf("cgroups left: %v", left)
	}
}

func mustCreate(t *testing.T, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Fatal(err)
	}
}

func command(args ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Command = append([]string{"/testprogram"}, args...) }
}

func never(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }

func terminated(p *corev1.Pod) *corev1.ContainerStateTerminated {
	if len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return p.Status.ContainerStatuses[0].State.Terminated
}

func TestHowPodsEnd(t *testing.T) {
	w := newWorld(t)
	w.kubelet()
	w.create("good", never, command("write", "/dev/termination-log", "my last words"))
	w.create("bad", never, command("fail", "3"), func(p *corev1.Pod) {
		p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	})
	w.create("crash", command("fail", "1"))
	w.create("noprogram", command(), func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/no/such/program"} })
	w.create("noroot", func(p *corev1.Pod) {
		yes := true
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes}
	})
	w.create("noimage", func(p *corev1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "127.0.0.1:1/none:1", corev1.PullIfNotPresent
	})
	w.create("novolume", func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}} // who has it needs it
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}}}}}
	})
	good := w.until("good", "succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if s := terminated(good); s == nil || s.Message != "my last words" || s.Reason != "Completed" {
		t.Errorf("good: %+v", good.Status.ContainerStatuses)
	}
	bad := w.until("bad", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if s := terminated(bad); s == nil || s.ExitCode != 3 || s.Reason != "Error" || !strings.Contains(s.Message, "failing with 3") {
		t.Errorf("bad: %+v", bad.Status.ContainerStatuses)
	}
	w.until("crash", "restarted twice", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount >= 2
	})
	for name, c := range map[string]struct{ reason, message string }{
		"noprogram": {"", "/no/such/program"},
		"noroot":    {"CreateContainerConfigError", "container has runAsNonRoot and image will run as root"},
		"noimage":   {"ImagePullBackOff", `Back-off pulling image "127.0.0.1:1/none:1"`},
	} {
		w.until(name, "waiting for "+c.reason, func(p *corev1.Pod) bool {
			if len(p.Status.ContainerStatuses) == 0 {
				return false
			}
			st := p.Status.ContainerStatuses[0]
			if st.LastTerminationState.Terminated != nil && c.reason == "" {
				return strings.Contains(st.LastTerminationState.Terminated.Message, c.message)
			}
			return st.State.Waiting != nil && st.State.Waiting.Reason == c.reason && strings.Contains(st.State.Waiting.Message, c.message)
		})
	}
	nodetest.Eventually(t, "the missing volume is told of", func() bool {
		events, _ := w.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		for _, e := range events.Items {
			if e.Reason == "FailedMount" && e.Message == `MountVolume.SetUp failed for volume "v" : configmap "missing" not found` {
				return true
			}
		}
		return false
	})
	for _, name := range []string{"good", "bad", "crash", "noprogram", "noroot", "noimage", "novolume"} {
		w.remove(name)
	}
	w.nothingLeft("uid-crash")
}

func (w *world) config() *rest.Config {
	return &rest.Config{Host: "https://" + w.addr, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func (w *world) get2(path string) (int, string) {
	w.t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	req, _ := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "https://"+w.addr+path, nil)
	resp, err := c.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func TestStreams(t *testing.T) {
	w := newWorld(t)
	w.kubelet()
	w.create("s")
	p := w.until("s", "ready", ready)
	nodetest.Eventually(t, "the log is served", func() bool {
		code, body := w.get2("/containerLogs/default/s/main")
		return code == http.StatusOK && strings.HasPrefix(body, "serving on")
	})
	if code, body := w.get2("/containerLogs/default/s/other"); code != http.StatusNotFound || !strings.Contains(body,
		`container "other" not found in pod "s"`) {
		t.Errorf("%d %q", code, body)
	}
	if code, body := w.get2("/containerLogs/default/s/main?previous=true"); code != http.StatusBadRequest || !strings.Contains(body, `previous terminated container "main" in pod "s" not found`) {
		t.Errorf("%d %q", code, body)
	}
	u, _ := url.Parse("https://" + w.addr + "/exec/default/s/main?command=/testprogram&command=cat&input=1&output=1&error=1")
	for name, mk := range map[string]func() (remotecommand.Executor, error){
		"SPDY": func() (remotecommand.Executor, error) { return remotecommand.NewSPDYExecutor(w.config(), "POST", u) },
		"WebSocket": func() (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutorForProtocols(w.config(), "GET", u.String(), "v4.channel.k8s.io")
		},
	} {
		t.Run(name, func(t *testing.T) {
			ex, err := mk()
			if err != nil {
				t.Fatal(err)
			}
			size := 20 << 20
			if name == "WebSocket" {
				size = 0 // version 4 of the protocol cannot end the input: only the output is tried
			}
			in := bytes.Repeat([]byte("0123456789abcdef"), size/16)
			var out, errs bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			o := remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}
			if size > 0 {
				o.Stdin = bytes.NewReader(in)
			} else {
				u2 := *u
				u2.RawQuery = "command=/testprogram&command=echo&command=hello&output=1&error=1"
				if ex, err = remotecommand.NewWebSocketExecutorForProtocols(w.config(), "GET", u2.String(), "v4.channel.k8s.io"); err != nil {
					t.Fatal(err)
				}
				in = []byte("hello\n")
			}
			if err := ex.StreamWithContext(ctx, o); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), in) {
				t.Errorf("%d bytes came back of %d; %s", out.Len(), len(in), errs.String())
			}
		})
	}
	w.forward(p)
	w.remove("s")
}

// forward a port and fetch through it.
func (w *world) forward(p *corev1.Pod) {
	t := w.t
	t.Helper()
	u, _ := url.Parse("https://" + w.addr + "/portForward/default/" + p.Name)
	rt, up, err := spdy.RoundTripperFor(w.config())
	if err != nil {
		t.Fatal(err)
	}
	stop, ok := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(spdy.NewDialer(up, &http.Client{Transport: rt}, "POST", u), []string{"0:80"}, stop, ok, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ok:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("through the port: %s", resp.Status)
	}
	close(stop)
	<-done
}

// Pods that share something with their node, or let others look into them.
func TestNamespaces(t *testing.T) {
	w := newWorld(t)
	w.kubelet()
	always, yes := corev1.ContainerRestartPolicyAlways, true
	w.create("host", command("serve", "127.0.0.1:18999"), func(p *corev1.Pod) {
		p.Spec.HostNetwork, p.Spec.HostPID = true, true
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			PeriodSeconds: 1, TimeoutSeconds: 1,
			ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(18999)}},
		}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	})
	w.create("sides", command("sleep", "300s"), func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: "side", Image: nodetest.Image, Command: []string{"/testprogram", "serve", ":81"}, RestartPolicy: &always,
			StartupProbe: &corev1.Probe{
				PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 30,
				ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(81)}},
			},
		}}
	})
	host := w.until("host", "ready", ready)
	if host.Status.PodIP != "127.0.0.1" || host.Status.HostIP != "127.0.0.1" {
		t.Errorf("status %+v", host.Status)
	}
	resp, err := http.Get("http://127.0.0.1:18999/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	sides := w.until("sides", "ready", ready)
	if s := sides.Status.InitContainerStatuses[0]; s.State.Running == nil || !s.Ready || !*s.Started {
		t.Errorf("sidecar %+v", s)
	}
	debug := sides.DeepCopy()
	debug.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		TargetContainerName: "main",
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", Image: nodetest.Image, Command: []string{"/testprogram", "stat", "/proc/1/cmdline"},
			ImagePullPolicy: corev1.PullIfNotPresent,
		},
	}}
	if _, err := w.client.CoreV1().Pods("default").Update(t.Context(), debug, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("sides", "debugged", func(p *corev1.Pod) bool {
		return len(p.Status.EphemeralContainerStatuses) == 1 && p.Status.EphemeralContainerStatuses[0].State.Terminated != nil
	})
	if _, body := w.get2("/containerLogs/default/sides/debug"); !strings.Contains(body, "sleep") {
		t.Errorf("the debug container sees %q", body)
	}
	if p := w.get("sides"); p.Status.Phase != corev1.PodRunning || !ready(p) {
		t.Errorf("after debugging: %+v", p.Status)
	}
	w.remove("host")
	w.remove("sides")
	w.nothingLeft("uid-sides")
}
