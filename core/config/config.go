// SPDX-License-Identifier: Apache-2.0

// Package config is the configuration document of wasmplane: one versioned YAML
// file that covers every component, decoded strictly. An unknown or wrong field
// is an error that names file, line, field and what was expected.
//
// Environment variables (WASMPLANE_...) and flags are laid over its scalars by
// the command. Plugin entries stay YAML nodes here: plugins/manifest owns them.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
	"github.com/wasmplane/wasmplane/core/kubelet/runtimehandler"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// APIVersion and Kind of the document.
const (
	APIVersion = "wasmplane.dev/v1alpha1"
	Kind       = "Configuration"
)

// Hardened is the profile of a careful operator.
const Hardened = "hardened"

// UsualHealthzPort is upstream's for a kubelet.
const UsualHealthzPort = 10248

// PolicyProjects are what PolicyKinds may name.
func PolicyProjects() []string { return []string{"gatekeeper", "kubewarden", "kyverno"} }

// Feature gates that others need, or that parts of the process ask for.
const (
	GenericWorkload       = "GenericWorkload"       // of pod groups
	DRAResourcePoolStatus = "DRAResourcePoolStatus" // of ResourcePoolStatusRequests
)

// gateNeeds has what FeatureGates of a Configuration may name, and the gate without which each does nothing.
func gateNeeds() map[string]string {
	return map[string]string{
		DRAResourcePoolStatus:             "",
		"DRAPartitionableDevicesType":     DRAResourcePoolStatus,
		GenericWorkload:                   "",
		"PodGroupPreemptionPolicy":        GenericWorkload,
		"TopologyAwareWorkloadScheduling": GenericWorkload,
	}
}

// FeatureGates are what FeatureGates of a Configuration may name.
func FeatureGates() []string { return slices.Sorted(maps.Keys(gateNeeds())) }

// PolicyReportFormats are what PolicyReports may name.
func PolicyReportFormats() []string { return []string{"wgpolicyk8s.io", "openreports.io"} }

// Sigstore is about signatures of images.
type Sigstore struct {
	// TrustedRoot is a file with a root of trust in Sigstore's form (trusted_root.json): authorities that give signers
	// their certificates, logs and time authorities. It is read anew when it has changed. Empty: there is none.
	TrustedRoot string `yaml:"trustedRoot"`
}

// Configuration is the whole document. Every field has a default; an empty
// document is a cluster of one real node.
type Configuration struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	// Profile decides on fields that are left open: empty, as each of them says, or
	// hardened, as the CIS Kubernetes benchmark asks (docs/SECURITY.md lists what that is).
	Profile     string      `yaml:"profile"`
	Cluster     Cluster     `yaml:"cluster"`
	Store       Store       `yaml:"store"`
	APIServer   APIServer   `yaml:"apiserver"`
	Scheduler   Scheduler   `yaml:"scheduler"`
	Controllers Controllers `yaml:"controllers"`
	// LeaderElection of the scheduler and the controllers, where several servers have them.
	LeaderElection LeaderElection `yaml:"leaderElection"`
	Node           Node           `yaml:"node"`
	Proxy          Proxy          `yaml:"proxy"`
	// LoadBalancer gives Services of type LoadBalancer their addresses.
	LoadBalancer LoadBalancer `yaml:"loadBalancer"`
	DNS          DNS          `yaml:"dns"`
	Trace        Trace        `yaml:"trace"`
	Backup       Backup       `yaml:"backup"`
	Join         Join         `yaml:"join"`
	// Airgap is where images, plugins' modules and manifests come from on machines without a network.
	Airgap Airgap `yaml:"airgap"`
	// ManifestsDir is a folder of manifests that a server applies at the start and when they
	// change; what is taken out of it is deleted (docs/OPERATING.md). Empty: DATA_DIR/manifests.
	// "none": there is no such folder.
	ManifestsDir string `yaml:"manifestsDir"`
	// Plugins are the entries of Wasm plugins, in the order in which they are
	// asked; sdk/spec and configs/plugins.yaml describe an entry.
	Plugins []yaml.Node `yaml:"plugins"`
	// PluginFiles is a folder below which Plugins of the API may name modules with
	// file:; a relative path starts at the configuration's folder. Empty: they may
	// not, and come from registries and https only.
	PluginFiles string `yaml:"pluginFiles"`
	// PolicyKinds are other projects whose policies are objects of the API and in force:
	// gatekeeper (ConstraintTemplate and the kinds that these define; mutators and
	// ExpansionTemplate, which servers apply themselves) and kubewarden
	// (ClusterAdmissionPolicy, AdmissionPolicy and the groups of both), as plugins; kyverno
	// (ValidatingPolicy and MutatingPolicy, those of namespaces too, and PolicyException), as
	// admission policies of the API, and ImageValidatingPolicy, which servers apply themselves. Empty: none.
	PolicyKinds []string `yaml:"policyKinds"`
	// PolicyReports is the format in which what policies have against stored objects is
	// reported, by its API group: wgpolicyk8s.io (PolicyReport) or openreports.io (Report).
	// Empty: none is; Gatekeeper's constraints show it in their status in any case.
	PolicyReports string `yaml:"policyReports"`
	// Sigstore says whom policies about images trust that name no root of trust themselves.
	Sigstore Sigstore `yaml:"sigstore"`
	// FeatureGates switch on what upstream has switched off in this version, by upstream's
	// names: GenericWorkload (Workloads and PodGroups of scheduling.k8s.io/v1beta1, whose pods
	// are placed all or nothing), TopologyAwareWorkloadScheduling (a PodGroup within one zone
	// or rack) and PodGroupPreemptionPolicy, which both need the first; DRAResourcePoolStatus
	// (ResourcePoolStatusRequests of resource.k8s.io/v1alpha3, which ask how many devices of a
	// driver are free) and DRAPartitionableDevicesType (free partitions by their type), which
	// needs it. All processes of a cluster need the same.
	FeatureGates map[string]bool `yaml:"featureGates"`
	Egress       Egress          `yaml:"egress"`

	// File that the document came from; relative paths in it start at its folder.
	File string `yaml:"-"`

	root *yaml.Node // of the document; nil where there is none
}

// Join is how this machine becomes a worker, or a further server, of a cluster of other machines
// (`wasmplane join` without arguments). What is said of `node`, `proxy` and `dns` holds for it; the
// cluster's name and networks come from its servers.
type Join struct {
	// Server is any server of the cluster, HOST or HOST:PORT. Later others are found by
	// themselves. Empty: the command's argument.
	Server string `yaml:"server"`
	// AsServer: this machine becomes a further server, as by --server, and not a worker.
	// That takes a token of `wasmplane token create --server`.
	AsServer bool `yaml:"asServer"`
	// Light: the further server keeps no part of the store, as by --light. It uses the store of the other servers,
	// has no vote, and does not count for the majority.
	Light bool `yaml:"light"`
	// TokenFile holds the token that `wasmplane token create` printed, which is needed
	// until the machine has joined. Empty: --token-file, or WASMPLANE_TOKEN.
	TokenFile string `yaml:"tokenFile"`
	// Pin of the cluster's authority (sha256:...), for a token that does not end with it.
	Pin string `yaml:"pin"`
}

// Airgap is an archive of `wasmplane airgap create` (docs/AIRGAP.md).
type Airgap struct {
	// File is the archive, which is taken over before anything starts. It is read whole once, and again when it is
	// another one. Empty: none is; what `wasmplane airgap load` has taken over is used all the same.
	File string `yaml:"file"`
	// Keys are files of public keys, in PEM. One of them has to have signed each archive that this machine takes over,
	// those of its servers too. Empty: archives need no signature, and are compared with their own list only.
	Keys []string `yaml:"keys"`
	// FromServers takes over the archives that servers of the cluster have, while this machine runs.
	FromServers bool `yaml:"fromServers"`
}

// Egress is where the control plane connects to on behalf of what others write.
type Egress struct {
	// Tenants are networks ("10.1.0.0/16") that the sources of TenantPlugins may be in
	// besides the internet: a registry of the company's. Without it they reach no private, loopback
	// or link-local address, nor the cluster's own.
	Tenants []string `yaml:"tenants"`
	// Operators are networks that sources of other plugins, webhooks and servers of
	// aggregated APIs may be in besides all but link-local addresses and those of cloud metadata services.
	Operators []string `yaml:"operators"`
}

// Networks are the lists as prefixes. They have been checked.
func (e Egress) Networks() (tenants, operators []netip.Prefix) {
	parse := func(list []string) (out []netip.Prefix) {
		for _, text := range list {
			if p, err := netip.ParsePrefix(text); err == nil {
				out = append(out, p.Masked())
			}
		}
		return out
	}
	return parse(e.Tenants), parse(e.Operators)
}

// Cluster names the cluster and its networks.
type Cluster struct {
	// Name: lower-case letters, digits and dashes, at most 24. Every name that the
	// cluster takes on its host (bridge, nftables tables, cgroup) derives from it,
	// so that clusters with different names share a host. A data directory records the name at the
	// first start, and is started by that one later; another name than the default is refused there.
	Name string `yaml:"name"`
	// Domain is the DNS suffix of Services.
	Domain string `yaml:"domain"`
	// IPFamilies of pods and Services, IPv4 or IPv6 or both, where PodCIDR names no networks: these
	// then follow from Name. The first is the cluster's: that of node addresses, and of Services
	// that ask for none. Empty: those of PodCIDR, or IPv4.
	IPFamilies []string `yaml:"ipFamilies"`
	// PodCIDR is the network of all pods, of which nodes get parts: one of IPv4 or of IPv6,
	// or one of each with a comma between them (10.244.0.0/16,fd00:10:244::/56), in the
	// order of IPFamilies. Empty: one for each of IPFamilies that follows from Name, a /16 of
	// 10.0.0.0/8 and a /56 of fd00:10::/32.
	PodCIDR string `yaml:"podCIDR"`
	// NodeCIDRMaskSize is the prefix length of a node's part of the IPv4 network in PodCIDR;
	// it decides how many nodes there can be (256 of a /16 with 24) and how many pods each has
	// room for. Nodes keep the parts that they have. 0: 24.
	NodeCIDRMaskSize int `yaml:"nodeCIDRMaskSize"`
	// NodeCIDRMaskSizeIPv6 is the same of the IPv6 network in PodCIDR. 0: 64.
	NodeCIDRMaskSizeIPv6 int `yaml:"nodeCIDRMaskSizeIPv6"`
	// ServiceCIDR is the network of Services, written as PodCIDR, which must have each of its
	// families. The first one's family is that of Services that ask for none. Empty: one for
	// each family of PodCIDR, in its order.
	ServiceCIDR string `yaml:"serviceCIDR"`
}

// Store is where the cluster's state lives.
type Store struct {
	// Endpoints of an external etcd, as URLs; empty: etcd in this process.
	Endpoints []string `yaml:"endpoints"`
	// CAFile, CertFile and KeyFile for TLS to an external etcd.
	CAFile   string `yaml:"caFile"`
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// PeerPort is where the etcd in this process listens for those of other servers, at the
	// machine's address, once there is a second one: every server of a cluster can have another.
	PeerPort int `yaml:"peerPort"`
	// EncryptionConfigFile is an EncryptionConfiguration of apiserver.config.k8s.io/v1:
	// which resources are encrypted at rest, and with which keys (a KMS v2 plugin's,
	// aesgcm, aescbc, secretbox). It is read again when it changes. Empty: nothing is.
	EncryptionConfigFile string `yaml:"encryptionConfigFile"`
	// QuotaBytes bounds the embedded etcd's database, in bytes. An eighth of it is kept
	// back from ordinary writes: for deletes, leases, states of nodes and administrators.
	// HardQuota is how far these may go.
	QuotaBytes int64 `yaml:"quotaBytes"`
	// NamespaceQuotaBytes bounds what the objects of one namespace take in the store;
	// kube-system has no bound. 0: a quarter of QuotaBytes; -1: there is no bound.
	NamespaceQuotaBytes int64 `yaml:"namespaceQuotaBytes"`
	// CompactionInterval: how much history is kept; watches and paged lists older
	// than that begin anew.
	CompactionInterval Duration `yaml:"compactionInterval"`
}

// HardQuota is the size in bytes at which the embedded etcd refuses all writes. It lies
// above QuotaBytes: at etcd's own bound not even a lease is renewed, and no node stays
// ready.
func (s *Store) HardQuota() int64 { return s.QuotaBytes + max(s.QuotaBytes/4, 64<<20) }

// APIServer settings.
type APIServer struct {
	// Listen is the address of the API, HOST:PORT; port 0 chooses one.
	Listen string `yaml:"listen"`
	// VirtualAddress is one for all servers, for clients outside: one of them has it at a time, on the
	// link in whose network it is, and another one takes it over. Free, of no machine: one address, or
	// one of each IP family with a comma between them. The API then has to listen at all addresses. Empty: none.
	VirtualAddress string `yaml:"virtualAddress"`
	// PodRoute is how the server connects to pods: those of webhooks, aggregated APIs and the proxies of pods and Services.
	// direct: by a route of its machine. kubelet: through the kubelets of their nodes. Empty: kubelet where
	// node.mode is none, else direct.
	PodRoute string `yaml:"podRoute"`
	// SubjectAltNames are further names and addresses of the serving certificate.
	SubjectAltNames []string `yaml:"subjectAltNames"`
	// TokenFile holds static tokens, a line each: token,user,uid,"group1,group2".
	TokenFile string `yaml:"tokenFile"`
	// BasicAuthFile holds users with passwords, a line each:
	// bcrypt-hash,user,uid,"group1,group2". It is read again when it changes.
	// Empty: passwords are not accepted.
	BasicAuthFile string `yaml:"basicAuthFile"`
	// AuthenticationConfigFile is an AuthenticationConfiguration of
	// apiserver.config.k8s.io (v1 or v1beta1): OpenID Connect issuers with their
	// claim mappings and rules, and who may be anonymous. It is read again when it changes.
	AuthenticationConfigFile string `yaml:"authenticationConfigFile"`
	// TokenWebhook asks a service about bearer tokens that nobody else knows.
	TokenWebhook TokenWebhook `yaml:"tokenWebhook"`
	// AuthorizationConfigFile is an AuthorizationConfiguration of
	// apiserver.config.k8s.io: the authorizers (Node, RBAC, Webhook, Wasm) in the
	// order in which they are asked. It is read again when it changes. Empty: Node,
	// RBAC, and Wasm authorizers where their own entries say.
	AuthorizationConfigFile string `yaml:"authorizationConfigFile"`
	// BootstrapTokens accepts tokens that are Secrets of type
	// bootstrap.kubernetes.io/token in kube-system.
	BootstrapTokens bool `yaml:"bootstrapTokens"`
	// ClientCAFiles are further authorities (PEM) of client certificates, beside the cluster's own.
	ClientCAFiles []string `yaml:"clientCAFiles"`
	// RequestHeader: authenticating proxies beside the cluster's own front proxy.
	RequestHeader RequestHeader `yaml:"requestHeader"`
	// ServiceAccountIssuer is the issuer of service account tokens.
	ServiceAccountIssuer string `yaml:"serviceAccountIssuer"`
	// ServiceAccountOldIssuers are further issuers whose tokens are accepted, for
	// the time in which the issuer changes.
	ServiceAccountOldIssuers []string `yaml:"serviceAccountOldIssuers"`
	// ServiceAccountSigningKeyFile (PEM, RSA or ECDSA) signs tokens; empty:
	// DATA_DIR/pki/sa.key.
	ServiceAccountSigningKeyFile string `yaml:"serviceAccountSigningKeyFile"`
	// ServiceAccountKeyFiles (PEM, public or private keys, several in a file) are
	// further keys whose tokens are accepted, for the time in which the key changes.
	ServiceAccountKeyFiles []string `yaml:"serviceAccountKeyFiles"`
	// ServiceAccountMaxTokenLifetime bounds the life that a token may be asked for;
	// 0: 2^32 seconds.
	ServiceAccountMaxTokenLifetime Duration `yaml:"serviceAccountMaxTokenLifetime"`
	// APIAudiences are the names by which tokens mean this apiserver; empty: the issuers.
	APIAudiences []string `yaml:"apiAudiences"`
	// AdmissionConfigFile is an AdmissionConfiguration of apiserver.config.k8s.io/v1:
	// what PodSecurity, ResourceQuota, EventRateLimit, PodNodeSelector,
	// PodTolerationRestriction, ImagePolicyWebhook and the two webhook plugins let
	// their operators configure. It is read at the start.
	AdmissionConfigFile string `yaml:"admissionConfigFile"`
	// EnableAdmissionPlugins are built-in admission plugins that are off by default
	// and DisableAdmissionPlugins such that are on; docs/ADMISSION.md lists both, and
	// those that cannot be disabled.
	EnableAdmissionPlugins  []string `yaml:"enableAdmissionPlugins"`
	DisableAdmissionPlugins []string `yaml:"disableAdmissionPlugins"`
	// StaticAdmissionDir is a folder of manifests: webhook configurations and
	// admission policies with their bindings, named NAME.static.k8s.io. They are in
	// force before the first request, cannot be touched through the API, and are
	// read again when they change. Empty: none.
	StaticAdmissionDir string `yaml:"staticAdmissionDir"`
	// AuditLogFile and AuditPolicyFile turn on the audit log; the policy is an
	// audit.k8s.io/v1 Policy.
	AuditLogFile    string `yaml:"auditLogFile"`
	AuditPolicyFile string `yaml:"auditPolicyFile"`
	// Audit says how audit events are written, and who else gets them.
	Audit Audit `yaml:"audit"`
	// Fairness shares out what is worked on at once by API priority and fairness
	// (FlowSchema, PriorityLevelConfiguration); false: the two bounds below are all.
	Fairness bool `yaml:"fairness"`
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight bound what is worked on at
	// once: reads and writes apart without fairness, their sum with it.
	MaxRequestsInFlight         int `yaml:"maxRequestsInFlight"`
	MaxMutatingRequestsInFlight int `yaml:"maxMutatingRequestsInFlight"`
	// EventTTL: how long Events are kept.
	EventTTL Duration `yaml:"eventTTL"`
}

// Audit settings. The modes are blocking (an event is written before the request
// goes on), blocking-strict (and a request whose first event cannot be written is
// refused) and batch (written in the background; a full buffer drops events).
type Audit struct {
	// LogMode of apiserver.auditLogFile; empty: blocking.
	LogMode string `yaml:"logMode"`
	// LogMaxBytes is when the file is rotated; 0: 100 MiB.
	LogMaxBytes int64 `yaml:"logMaxBytes"`
	// LogMaxFiles is how many rotated files are kept; 0: 10.
	LogMaxFiles int `yaml:"logMaxFiles"`
	// LogMaxAge is how long rotated files are kept; 0: until there are too many.
	LogMaxAge Duration `yaml:"logMaxAge"`
	// LogMaxEventBytes: larger events lose their bodies; 0: none does.
	LogMaxEventBytes int64 `yaml:"logMaxEventBytes"`
	// WebhookConfigFile is a kubeconfig that says to whom events are sent, as
	// EventLists of audit.k8s.io/v1. Empty: to nobody.
	WebhookConfigFile string `yaml:"webhookConfigFile"`
	// WebhookMode; empty: batch.
	WebhookMode string `yaml:"webhookMode"`
	// WebhookInitialBackoff is the first pause before events are sent again; 0: 10s.
	WebhookInitialBackoff Duration `yaml:"webhookInitialBackoff"`
	// WebhookBufferEvents, WebhookBatchEvents and WebhookBatchWait bound what waits,
	// what is sent at once, and how long it waits; 0: 10000, 400 and 30s.
	WebhookBufferEvents int      `yaml:"webhookBufferEvents"`
	WebhookBatchEvents  int      `yaml:"webhookBatchEvents"`
	WebhookBatchWait    Duration `yaml:"webhookBatchWait"`
	// WebhookMaxEventBytes: larger events lose their bodies; 0: 102400.
	WebhookMaxEventBytes int64 `yaml:"webhookMaxEventBytes"`
}

// TokenWebhook says who else knows bearer tokens.
type TokenWebhook struct {
	// ConfigFile is a kubeconfig: its cluster is the service that gets TokenReviews,
	// its user as whom the service is asked. It is read again when it changes. Empty:
	// nobody is asked.
	ConfigFile string `yaml:"configFile"`
	// Version of authentication.k8s.io that the service speaks: v1 (also empty) or v1beta1.
	Version string `yaml:"version"`
	// CacheTTL is how long an answer is remembered, yes or no; 0: 2m, negative: not at all.
	CacheTTL Duration `yaml:"cacheTTL"`
	// Timeout of one question; 0: 30s.
	Timeout Duration `yaml:"timeout"`
}

// RequestHeader says which authenticating proxies are believed.
type RequestHeader struct {
	// ClientCAFile (PEM) vouches for the proxy's client certificate; empty: only the
	// cluster's own front proxy authority does.
	ClientCAFile string `yaml:"clientCAFile"`
	// AllowedNames are common names that the certificate may have, beside the
	// cluster's own front proxy. With a ClientCAFile at least one is needed.
	AllowedNames []string `yaml:"allowedNames"`
	// Headers that carry the identity; empty: X-Remote-User, X-Remote-Uid,
	// X-Remote-Group and X-Remote-Extra-.
	UsernameHeaders     []string `yaml:"usernameHeaders"`
	UIDHeaders          []string `yaml:"uidHeaders"`
	GroupHeaders        []string `yaml:"groupHeaders"`
	ExtraHeaderPrefixes []string `yaml:"extraHeaderPrefixes"`
}

// Scheduler settings.
type Scheduler struct {
	// ConfigFile is a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1), in the
	// place of profiles, topologySpread and volumeBindingTimeout. A change of it takes effect
	// within seconds; a wrong one leaves the one before in force.
	ConfigFile string `yaml:"configFile"`
	// Profiles; a pod chooses one by spec.schedulerName. Empty: one, "default-scheduler",
	// with every native plugin and every Wasm scheduling plugin.
	Profiles []Profile `yaml:"profiles"`
	// TopologySpread says how pods without topologySpreadConstraints are spread.
	TopologySpread TopologySpread `yaml:"topologySpread"`
	// VolumeBindingTimeout is how long a pod that has its node waits for its volumes
	// to be made and bound, before another node is looked for.
	VolumeBindingTimeout Duration `yaml:"volumeBindingTimeout"`
	// Serving of metrics and health, where the scheduler is a process of its own.
	Serving Serving `yaml:"serving"`
}

// NoListen is an address to listen at that means nowhere.
const NoListen = "none"

// Serving says where a component that is a process of its own serves /metrics,
// /livez, /readyz and /healthz, over TLS. With `up` they are the apiserver's.
type Serving struct {
	// Listen is HOST:PORT, or none. Empty: upstream's port of 127.0.0.1 (10259 for the
	// scheduler, 10257 for the controllers), or nowhere where that is taken.
	Listen string `yaml:"listen"`
	// CertFile and KeyFile (PEM) are read again when they change. Empty: a certificate
	// that signs itself, made at each start.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
}

// TopologySpread are the constraints of pods that have none of their own. They
// count the pods of the same Services and the same ReplicaSet, StatefulSet or
// ReplicationController.
type TopologySpread struct {
	// DefaultingType is System (upstream's constraints: rather on other nodes, with a
	// maxSkew of 3, and in other zones, with one of 5) or List (those below; none: such
	// pods are not spread). Empty: System.
	DefaultingType string `yaml:"defaultingType"`
	// DefaultConstraints of type List.
	DefaultConstraints []SpreadConstraint `yaml:"defaultConstraints"`
}

// SpreadConstraint is a topologySpreadConstraint without a labelSelector.
type SpreadConstraint struct {
	// MaxSkew is how many pods more than elsewhere there may be in one place; at least 1.
	MaxSkew int32 `yaml:"maxSkew"`
	// TopologyKey is the nodes' label that tells places apart.
	TopologyKey string `yaml:"topologyKey"`
	// WhenUnsatisfiable is DoNotSchedule or ScheduleAnyway.
	WhenUnsatisfiable string `yaml:"whenUnsatisfiable"`
}

// Profile is one scheduling policy.
type Profile struct {
	Name string `yaml:"name"`
	// Disable names plugins that this profile leaves out, native or Wasm.
	Disable []string `yaml:"disable"`
	// Weights of scoring plugins, by name; others keep their default.
	Weights map[string]int64 `yaml:"weights"`
	// TopologySpread of this profile; none: the scheduler's.
	TopologySpread *TopologySpread `yaml:"topologySpread"`
}

// Controllers settings.
type Controllers struct {
	// Enabled lists controllers: "*" is all, "-name" leaves one out.
	Enabled []string `yaml:"enabled"`
	// NodeMonitorGracePeriod: how long a node may be silent before it is not ready.
	NodeMonitorGracePeriod Duration `yaml:"nodeMonitorGracePeriod"`
	// Serving of metrics and health, where the controllers are a process of their own.
	Serving Serving `yaml:"serving"`
}

// Node settings: which nodes this process runs, and how.
type Node struct {
	// Mode: real (this machine), simulated:N, or none.
	Mode NodeMode `yaml:"mode"`
	// Name of the real node; empty: the host's name.
	Name string `yaml:"name"`
	// Address of the real node, or two with a comma between them, one of each IP family;
	// empty: for each family of the cluster's pods the address of the default route.
	Address string `yaml:"address"`
	// CRIEndpoint is the socket of a CRI runtime that is already there
	// (unix:///run/containerd/containerd.sock); empty: the embedded containerd.
	CRIEndpoint string `yaml:"criEndpoint"`
	// CNIConfigDir and CNIBinDir of another network; empty: the embedded bridge network.
	CNIConfigDir string `yaml:"cniConfigDir"`
	CNIBinDir    string `yaml:"cniBinDir"`
	// PodNetwork: how the embedded network reaches the pods of other nodes.
	PodNetwork PodNetwork `yaml:"podNetwork"`
	// MaxPods of one node.
	MaxPods int64 `yaml:"maxPods"`
	// PodPidsLimit bounds the processes and threads of one pod, all its containers together, so that a pod that
	// makes more and more of them takes none away from others. 0: no bound, with profile: hardened 4096. -1: no bound.
	PodPidsLimit int64 `yaml:"podPidsLimit"`
	// EvictionHard says below what the node is under pressure, takes no more pods,
	// and evicts those that use most of what is short: upstream's signals memory.available, nodefs.available,
	// nodefs.inodesFree and pid.available, each a percentage, an amount, or several
	// of which the smallest counts. Signals that are not named keep their default.
	EvictionHard map[string]string `yaml:"evictionHard"`
	// EvictionSoft are limits of the same kind, higher ones: below one for as long as
	// EvictionSoftGracePeriod says of the signal, the node evicts pods too, and leaves each
	// its own time to end, at most EvictionMaxPodGracePeriod (0s: they are killed at once).
	EvictionSoft              map[string]string   `yaml:"evictionSoft"`
	EvictionSoftGracePeriod   map[string]Duration `yaml:"evictionSoftGracePeriod"`
	EvictionMaxPodGracePeriod Duration            `yaml:"evictionMaxPodGracePeriod"`
	// EvictionMinimumReclaim is, by signal, how much more than the limit there is to be
	// before the node stops to evict.
	EvictionMinimumReclaim map[string]string `yaml:"evictionMinimumReclaim"`
	// EvictionPressureTransitionPeriod is how long the node stays under pressure, and takes
	// no more pods, when nothing is short any more.
	EvictionPressureTransitionPeriod Duration `yaml:"evictionPressureTransitionPeriod"`
	// KubeReserved and SystemReserved are amounts of cpu, memory, ephemeral-storage and pid that
	// are kept for Kubernetes' own processes and for the system's: they are not allocatable.
	// reservedSystemCPUs, where it is given, stands in the place of cpu in both, and
	// reservedMemory is a part of their memory.
	KubeReserved   map[string]string `yaml:"kubeReserved"`
	SystemReserved map[string]string `yaml:"systemReserved"`
	// EnforceNodeAllocatable: pods bounds all pods of the node together, in memory and process
	// IDs, by what is not reserved, and weighs their processors by it. none (or an empty list) does not.
	EnforceNodeAllocatable []string `yaml:"enforceNodeAllocatable"`
	// ImageGCHighThresholdPercent is how full the disk may be before images that
	// nothing uses are removed, ImageGCLowThresholdPercent how full it is then to be.
	ImageGCHighThresholdPercent uint64 `yaml:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent  uint64 `yaml:"imageGCLowThresholdPercent"`
	// ImageMinimumGCAge is how long an image stays at least that nothing uses, from when the
	// node first saw it (0s: 2m). ImageMaximumGCAge is how long an image may be unused before it is
	// removed, however much room there is; it begins anew when the node starts. 0s: for ever.
	ImageMinimumGCAge Duration `yaml:"imageMinimumGCAge"`
	ImageMaximumGCAge Duration `yaml:"imageMaximumGCAge"`
	// Images bounds what one image takes, where the embedded containerd pulls it.
	Images ImageBounds `yaml:"images"`
	// Labels of the node.
	Labels map[string]string `yaml:"labels"`
	// LogDir and LogLinkDir are where container logs go and where log tools look
	// for links to them. Empty LogLinkDir: no links.
	LogDir     string `yaml:"logDir"`
	LogLinkDir string `yaml:"logLinkDir"`
	// Registries: mirrors and plain-HTTP registries of the embedded containerd.
	Registries []Registry `yaml:"registries"`
	// RuntimeHandlers of the embedded containerd that a RuntimeClass may name, beside runc,
	// wasm and wasm-only: gVisor, Kata, crun. Their programs run as root.
	RuntimeHandlers []RuntimeHandler `yaml:"runtimeHandlers"`
	// EnableSystemLogHandler: the kubelet's server shows the machine's logs, the files below
	// /var/log, at /logs/ to who may get nodes/log. EnableSystemLogQuery: it also answers
	// queries there, of services' logs in the journal or in files (docs/NODES.md).
	EnableSystemLogHandler bool `yaml:"enableSystemLogHandler"`
	EnableSystemLogQuery   bool `yaml:"enableSystemLogQuery"`
	// ContainerCheckpoints: the kubelet's server writes running containers to archives by the machine's criu, for
	// who may create nodes/checkpoint (docs/NODES.md).
	ContainerCheckpoints bool `yaml:"containerCheckpoints"`
	// KubeletListen is the address of the kubelet's server, HOST:PORT; port 0 chooses one. Empty: port
	// 10250 at all addresses, or any port where that one is taken, as by another cluster's node on the machine.
	KubeletListen string `yaml:"kubeletListen"`
	// ShutdownGracePeriod is how long pods may take to end when the machine goes down, and
	// ShutdownGracePeriodCriticalPods the last part of it, which critical pods have for themselves.
	// The machine waits for them; that needs systemd. 0s: it does not wait.
	ShutdownGracePeriod             Duration `yaml:"shutdownGracePeriod"`
	ShutdownGracePeriodCriticalPods Duration `yaml:"shutdownGracePeriodCriticalPods"`
	// ShutdownGracePeriodByPodPriority is the same in more steps, in the place of both: pods of a
	// priority, and of those up to the next one that is given, have so many seconds, after those of lower ones.
	ShutdownGracePeriodByPodPriority []ShutdownPeriod `yaml:"shutdownGracePeriodByPodPriority"`
	// MemorySwap: whether pods may use the machine's swap space.
	MemorySwap MemorySwap `yaml:"memorySwap"`
	// FailSwapOn: the real node does not start on a machine whose swap is on. False: it starts, and its pods
	// use of it what memorySwap says.
	FailSwapOn bool `yaml:"failSwapOn"`
	// HealthzPort is where the real node tells programs of its machine, at 127.0.0.1 and without
	// TLS, whether the kubelet lives (/healthz). 0: nowhere. The usual port may be taken, by
	// another cluster of this machine: the node then says so, and does without.
	HealthzPort int32 `yaml:"healthzPort"`
	// ReservedHostPorts are TCP ports of the node that no pod gets as its hostPort,
	// beside the API's and the kubelet's, which it never gets, and those on which a
	// process of the node listens when the pod starts.
	ReservedHostPorts []int32 `yaml:"reservedHostPorts"`
	// ReservedUDPHostPorts are the same of UDP. By default they are those by which nodes send each other
	// what their pods send: VXLAN's (4789, of other networks 8472) and WireGuard's (51820).
	ReservedUDPHostPorts []int32 `yaml:"reservedUDPHostPorts"`
	// LocalVolumes: the real node offers room of its disk to claims, by storage class
	// "local". False: it takes no new ones, and looks after those that it has.
	LocalVolumes bool `yaml:"localVolumes"`
	// KubeletLink is a path at which CSI drivers find the kubelet's directory, which is
	// DATA_DIR/node/kubelet: "/var/lib/kubelet" is where most drivers' manifests look. A
	// link is made there, and removed by "wasmplane down"; a bind mount of the directory
	// that is there already is left alone. Empty: none.
	KubeletLink string `yaml:"kubeletLink"`
	// StaticPodPath is a folder of manifests, one pod a file, which the real node runs
	// whether or not there is an API server. Empty: none.
	StaticPodPath string `yaml:"staticPodPath"`
	// ImageCredentialProviderConfig is a file of upstream's CredentialProviderConfig, or a
	// folder of such files: programs in ImageCredentialProviderBinDir that have credentials
	// for images. Empty: none.
	ImageCredentialProviderConfig string `yaml:"imageCredentialProviderConfig"`
	ImageCredentialProviderBinDir string `yaml:"imageCredentialProviderBinDir"`
	// CPUManagerPolicy: none, or static: containers of guaranteed pods that ask for whole CPUs
	// have these alone. CPUManagerPolicyOptions are full-pcpus-only, distribute-cpus-across-numa,
	// prefer-align-cpus-by-uncorecache and strict-cpu-reservation.
	CPUManagerPolicy        string          `yaml:"cpuManagerPolicy"`
	CPUManagerPolicyOptions map[string]bool `yaml:"cpuManagerPolicyOptions"`
	// ReservedSystemCPUs of the machine (0-1,4) are given to no container alone, and are not
	// allocatable. static needs some.
	ReservedSystemCPUs string `yaml:"reservedSystemCPUs"`
	// MemoryManagerPolicy: None, or Static: guaranteed pods have their memory of the fewest NUMA nodes.
	MemoryManagerPolicy string `yaml:"memoryManagerPolicy"`
	// ReservedMemory of NUMA nodes is given to nobody, and is not allocatable.
	ReservedMemory []ReservedMemory `yaml:"reservedMemory"`
	// TopologyManagerPolicy says whether CPUs, memory and devices have to be of the same NUMA
	// nodes: none, best-effort, restricted, single-numa-node. TopologyManagerScope: those of a
	// container, or of a whole pod.
	TopologyManagerPolicy string `yaml:"topologyManagerPolicy"`
	TopologyManagerScope  string `yaml:"topologyManagerScope"`
	// NetworkPolicies: the real node enforces them by nftables. False: the network that
	// cniConfigDir names does, or nobody.
	NetworkPolicies bool `yaml:"networkPolicies"`
}

// ShutdownPeriod of the pods of a priority.
type ShutdownPeriod struct {
	Priority                   int32 `yaml:"priority"`
	ShutdownGracePeriodSeconds int64 `yaml:"shutdownGracePeriodSeconds"`
}

// MemorySwap of a node.
type MemorySwap struct {
	// SwapBehavior: NoSwap, also if empty: pods use none. LimitedSwap, on machines with cgroups of version 2: containers
	// of Burstable pods use as much of it as they ask for of the memory.
	SwapBehavior string `yaml:"swapBehavior"`
}

// ReservedMemory of one NUMA node.
type ReservedMemory struct {
	NUMANode int `yaml:"numaNode"`
	// Limits are amounts by kind: memory, hugepages-2Mi.
	Limits map[string]string `yaml:"limits"`
}

// checkManagers refuses what is no policy of a node's resource managers.
func (n *Node) checkManagers() error {
	for _, c := range []struct {
		name, value string
		known       []string
	}{
		{"cpuManagerPolicy", n.CPUManagerPolicy, []string{"none", "static"}},
		{"memoryManagerPolicy", n.MemoryManagerPolicy, []string{"None", "Static"}},
		{"topologyManagerPolicy", n.TopologyManagerPolicy, []string{"none", "best-effort", "restricted", "single-numa-node"}},
		{"topologyManagerScope", n.TopologyManagerScope, []string{"container", "pod"}},
		{"memorySwap.swapBehavior", cmp.Or(n.MemorySwap.SwapBehavior, "NoSwap"), []string{"NoSwap", "LimitedSwap"}},
	} {
		if !slices.Contains(c.known, c.value) {
			return field("node."+c.name, "expected one of %s, found %q", strings.Join(c.known, ", "), c.value)
		}
	}
	known := []string{"full-pcpus-only", "distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache", "strict-cpu-reservation"}
	for _, name := range slices.Sorted(maps.Keys(n.CPUManagerPolicyOptions)) {
		if !slices.Contains(known, name) {
			return field("node.cpuManagerPolicyOptions", "expected some of %s, found %q", strings.Join(known, ", "), name)
		}
	}
	if n.CPUManagerPolicy == "static" && n.ReservedSystemCPUs == "" {
		return field("node.reservedSystemCPUs",
			"expected some of this machine's CPUs, such as 0-1: cpuManagerPolicy static needs them for the system")
	}
	return nil
}

// PodNetwork is the way between pods of different nodes. It should be the same on all.
type PodNetwork struct {
	// Backend: auto (routes to nodes on a link of this machine, VXLAN to the others),
	// routes (all nodes share a link), or vxlan (for networks that drop packets from
	// addresses which they don't know). VXLAN is UDP at port 4789; it does not encrypt.
	Backend string `yaml:"backend"`
	// MTU of pods' links; 0: what the machine's link leaves. A smaller one is for a
	// narrower place on the way between the nodes.
	MTU int `yaml:"mtu"`
}

// ImageBounds are refused with the bound's name in the pod's events, blobs before they are
// downloaded, layers while they are unpacked. 0: there is no bound.
type ImageBounds struct {
	// LayerBytes and ImageBytes are those of a layer and of all layers of an image, to
	// download and unpacked.
	LayerBytes int64 `yaml:"layerBytes"`
	ImageBytes int64 `yaml:"imageBytes"`
	// LayerFiles and ImageFiles count files, directories and links.
	LayerFiles int64 `yaml:"layerFiles"`
	ImageFiles int64 `yaml:"imageFiles"`
}

// RuntimeHandler is an entry of containerd's table of runtimes.
type RuntimeHandler struct {
	// Name is the handler of a RuntimeClass.
	Name string `yaml:"name"`
	// RuntimeType as containerd has it: io.containerd.runc.v2, io.containerd.runsc.v1,
	// io.containerd.kata.v2.
	RuntimeType string `yaml:"runtimeType"`
	// RuntimePath is the absolute path of the shim. Empty: containerd-shim-NAME-vN on PATH, by
	// the type, and for io.containerd.runc.v2 the node's own shim.
	RuntimePath string `yaml:"runtimePath"`
	// Options of the shim: text, whole numbers, true or false. For io.containerd.runc.v2 these are
	// BinaryName, NoPivotRoot, NoNewKeyring, IoUid, IoGid; for others often TypeUrl and ConfigPath.
	Options map[string]any `yaml:"options"`
	// PodAnnotations and ContainerAnnotations are names or patterns (io.katacontainers.*) of
	// annotations that the runtime is told. Whoever writes pods writes the first.
	PodAnnotations       []string `yaml:"podAnnotations"`
	ContainerAnnotations []string `yaml:"containerAnnotations"`
	// PrivilegedWithoutHostDevices: a privileged container does not get the machine's devices.
	PrivilegedWithoutHostDevices bool `yaml:"privilegedWithoutHostDevices"`
	// BaseRuntimeSpec is the absolute path of a file with the OCI specification that
	// containers begin with. Empty: containerd's default.
	BaseRuntimeSpec string `yaml:"baseRuntimeSpec"`
}

// Handlers are the configured runtime handlers, for the node's containerd.
func (n *Node) Handlers() []runtimehandler.Handler {
	out := make([]runtimehandler.Handler, 0, len(n.RuntimeHandlers))
	for _, h := range n.RuntimeHandlers {
		out = append(out, runtimehandler.Handler{
			Name: h.Name, Type: h.RuntimeType, Path: h.RuntimePath, Options: h.Options,
			PodAnnotations: h.PodAnnotations, ContainerAnnotations: h.ContainerAnnotations,
			PrivilegedWithoutHostDevices: h.PrivilegedWithoutHostDevices, BaseRuntimeSpec: h.BaseRuntimeSpec,
		})
	}
	return out
}

// maxRuntimeHandlers of one node: containerd asks each of them what it can do when it starts.
const maxRuntimeHandlers = 32

const (
	// leastPodPids is the smallest node.podPidsLimit: common runtimes have dozens of threads, and below that hardly a pod would start.
	leastPodPids = 32
	// hardenedPodPids is node.podPidsLimit of the hardened profile (CIS 4.2.13).
	hardenedPodPids = 4096
)

// PodPIDs bounds the processes and threads of one pod; 0: no bound. It is of every machine whose configuration has the profile,
// workers too.
func (c *Configuration) PodPIDs() int64 {
	if c.Node.PodPidsLimit == 0 && c.Profile == Hardened {
		return hardenedPodPids
	}
	return max(c.Node.PodPidsLimit, 0)
}

// checkRuntimeHandlers refuses what is no handler of the embedded containerd.
func (n *Node) checkRuntimeHandlers() error {
	if len(n.RuntimeHandlers) > 0 && n.CRIEndpoint != "" {
		return field("node.runtimeHandlers", "expected none with criEndpoint: the runtime there has a configuration of its own; name the handlers in that")
	}
	if len(n.RuntimeHandlers) > maxRuntimeHandlers {
		return field("node.runtimeHandlers", "expected at most %d, found %d", maxRuntimeHandlers, len(n.RuntimeHandlers))
	}
	seen := map[string]bool{}
	for i, h := range n.Handlers() {
		at := fmt.Sprintf("node.runtimeHandlers[%d].", i)
		if name, problem := h.Problem(); problem != "" {
			return field(at+name, "%s", problem)
		}
		if seen[h.Name] {
			return field(at+"name", "%s is given twice", h.Name)
		}
		seen[h.Name] = true
	}
	return nil
}

// Registry says how images of one registry host are fetched.
type Registry struct {
	// Host as it stands in image names, e.g. docker.io or localhost:5000.
	Host string `yaml:"host"`
	// Mirrors are URLs that are asked in order before the host itself; an http
	// URL is plain HTTP.
	Mirrors []string `yaml:"mirrors"`
	// CAFile is the certificate authority of the mirrors.
	CAFile string `yaml:"caFile"`
	// PlainHTTP reaches the host itself without TLS.
	PlainHTTP bool `yaml:"plainHTTP"`
	// SkipVerify accepts any certificate.
	SkipVerify bool `yaml:"skipVerify"`
}

// Proxy settings.
type Proxy struct {
	// Enabled: Services are served by this process's nftables rules on a real node.
	Enabled bool `yaml:"enabled"`
	// MetricsListen is where a proxy that is a process of its own serves /metrics,
	// /livez, /readyz, /healthz and /proxyMode, without TLS: HOST:PORT of a loopback
	// address, or none. A proxy within "up" or "agent" serves /proxyMode, /livez,
	// /healthz and its own /metrics. Empty: 127.0.0.1:10249, or nowhere where that is taken.
	MetricsListen string `yaml:"metricsListen"`
	// HealthListen is where the real node tells load balancers and probes whether Services are
	// reached through it, at /healthz and /livez, without TLS and to everybody: HOST:PORT, or none.
	// Empty: port 10256 of all addresses, or nowhere where that is taken.
	HealthListen string `yaml:"healthListen"`
}

// LoadBalancer settings.
type LoadBalancer struct {
	// Enabled: Services of type LoadBalancer without a class, or of the class
	// wasmplane.dev/load-balancer, get their addresses from the controllers. False: another
	// implementation's matter, and what Services have is taken back.
	Enabled bool `yaml:"enabled"`
	// Pools of addresses, used in their order. Empty: Services have the nodes' own
	// addresses, and share them by their ports.
	Pools []AddressPool `yaml:"pools"`
	// Announce: this machine, if it is a real node, answers for addresses of pools on the
	// link in whose network they are (ARP, and Neighbor Discovery for IPv6). False: routers
	// send them here, or another program answers.
	Announce bool `yaml:"announce"`
}

// AddressPool is addresses that Services of type LoadBalancer get. No machine may have them.
type AddressPool struct {
	// Name, for messages.
	Name string `yaml:"name"`
	// Addresses: networks (192.0.2.64/28, all of whose addresses are given), ranges
	// (192.0.2.10-192.0.2.20) and single addresses, of both IP families.
	Addresses []string `yaml:"addresses"`
	// Namespaces whose Services get them. Empty: all.
	Namespaces []string `yaml:"namespaces"`
}

// AddressPools are the pools. They have been checked.
func (l *LoadBalancer) AddressPools() []loadbalancer.Pool {
	var out []loadbalancer.Pool
	for _, p := range l.Pools {
		pool := loadbalancer.Pool{Name: p.Name, Namespaces: p.Namespaces}
		for _, text := range p.Addresses {
			if r, err := loadbalancer.ParseRange(text); err == nil {
				pool.Ranges = append(pool.Ranges, r)
			}
		}
		out = append(out, pool)
	}
	return out
}

// checkPools refuses what is no address, or one of the cluster's own networks.
func (c *Configuration) checkFeatures() error {
	for _, gate := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		needs, known := gateNeeds()[gate]
		switch on := c.FeatureGates[gate]; {
		case !known:
			return field("featureGates."+gate, "expected one of %v, found %q", FeatureGates(), gate)
		case on && needs != "" && !c.FeatureGates[needs]:
			return field("featureGates."+gate, "it needs %s; add `%s: true` beside it", needs, needs)
		}
	}
	return nil
}

func (c *Configuration) checkPools() error {
	seen := map[string]bool{}
	for i, p := range c.LoadBalancer.Pools {
		at := fmt.Sprintf("loadBalancer.pools[%d]", i)
		if p.Name == "" || seen[p.Name] {
			return field(at+".name", "every pool needs a name of its own, found %q", p.Name)
		}
		seen[p.Name] = true
		if len(p.Addresses) == 0 {
			return field(at+".addresses", "expected at least one network, range or address")
		}
		for j, text := range p.Addresses {
			at := fmt.Sprintf("%s.addresses[%d]", at, j)
			r, err := loadbalancer.ParseRange(text)
			if err != nil {
				return field(at, "expected a network such as 192.0.2.64/28, a range such as 192.0.2.10-192.0.2.20, or an address: %v", err)
			}
			for path, networks := range map[string][]netip.Prefix{
				"cluster.podCIDR":     c.Cluster.PodNetworks(),
				"cluster.serviceCIDR": c.Cluster.ServiceNetworks(),
			} {
				for _, network := range networks {
					if r.Overlaps(network) {
						return field(at, "%s overlaps %s %s", text, path, network)
					}
				}
			}
		}
	}
	return nil
}

// DNS settings.
type DNS struct {
	Enabled bool `yaml:"enabled"`
	// Upstream resolvers, HOST or HOST:PORT; empty: the host's.
	Upstream []string `yaml:"upstream"`
}

// Trace settings.
type Trace struct {
	// MaxSpans and MaxBytes bound the store of spans.
	MaxSpans int   `yaml:"maxSpans"`
	MaxBytes int64 `yaml:"maxBytes"`
}

// Duration is a time.Duration written as "30s" or "5m".
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return &strictyaml.FieldError{Line: n.Line, Problem: fmt.Sprintf("expected a duration such as 30s or 5m, found %q", n.Value)}
	}
	*d = Duration(v)
	return nil
}

// Path makes a path of the configuration relative to the configuration's folder. An
// empty one stays empty.
func (c *Configuration) Path(path string) string {
	if path == "" || filepath.IsAbs(path) || c.File == "" {
		return path
	}
	return filepath.Join(filepath.Dir(c.File), path)
}

// Default is the configuration of an empty document.
func Default() *Configuration {
	return &Configuration{
		APIVersion: APIVersion,
		Kind:       Kind,
		Cluster:    Cluster{Name: "wasmplane", Domain: "cluster.local", NodeCIDRMaskSize: 24, NodeCIDRMaskSizeIPv6: 64},
		Store:      Store{PeerPort: 2380, QuotaBytes: 8 << 30, CompactionInterval: Duration(5 * time.Minute)},
		Airgap:     Airgap{FromServers: true},
		APIServer: APIServer{
			Listen:                      "127.0.0.1:6443",
			ServiceAccountIssuer:        "https://kubernetes.default.svc.cluster.local",
			BootstrapTokens:             true,
			Fairness:                    true,
			MaxRequestsInFlight:         400,
			MaxMutatingRequestsInFlight: 200,
			EventTTL:                    Duration(time.Hour),
		},
		Scheduler:   Scheduler{TopologySpread: TopologySpread{DefaultingType: "System"}, VolumeBindingTimeout: Duration(10 * time.Minute)},
		Controllers: Controllers{Enabled: []string{"*"}, NodeMonitorGracePeriod: Duration(50 * time.Second)},

		LeaderElection: LeaderElection{LeaseDuration: Duration(15 * time.Second), QuickLeaseDuration: Duration(4 * time.Second)},
		Node: Node{
			Mode:         NodeMode{Real: true},
			PodNetwork:   PodNetwork{Backend: "auto"},
			MaxPods:      110,
			EvictionHard: threshold.Defaults(), EvictionPressureTransitionPeriod: Duration(5 * time.Minute),
			EnforceNodeAllocatable: []string{reservation.Pods},
			HealthzPort:            UsualHealthzPort,

			CPUManagerPolicy:      "none",
			MemoryManagerPolicy:   "None",
			TopologyManagerPolicy: "none",
			TopologyManagerScope:  "container",

			Images:                      ImageBounds{LayerBytes: 16 << 30, ImageBytes: 32 << 30, LayerFiles: 1_000_000, ImageFiles: 2_000_000},
			ImageMinimumGCAge:           Duration(2 * time.Minute),
			ImageGCHighThresholdPercent: 85,
			ImageGCLowThresholdPercent:  80,

			LogDir:     "/var/log/pods",
			LogLinkDir: "/var/log/containers",

			ReservedHostPorts:    []int32{22, 2379, 2380},
			ReservedUDPHostPorts: []int32{4789, 8472, 51820},
			LocalVolumes:         true,

			EnableSystemLogHandler: true,
			ContainerCheckpoints:   true,
			NetworkPolicies:        true,
		},
		Proxy:        Proxy{Enabled: true},
		LoadBalancer: LoadBalancer{Enabled: true, Announce: true},
		DNS:          DNS{Enabled: true},
		Trace:        Trace{MaxSpans: 200_000, MaxBytes: 64 << 20},
		Backup:       Backup{Keep: 7},
	}
}

// NodeMode says which nodes there are: this machine, simulated ones, or, in its zero
// value, none.
type NodeMode struct {
	Real      bool
	Simulated int
}

// String is what ParseNodeMode reads.
func (m NodeMode) String() string {
	switch {
	case m.Real:
		return "real"
	case m.Simulated > 0:
		return fmt.Sprintf("simulated:%d", m.Simulated)
	}
	return "none"
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (m *NodeMode) UnmarshalYAML(n *yaml.Node) (err error) {
	if *m, err = ParseNodeMode(n.Value); err != nil {
		return &strictyaml.FieldError{Line: n.Line, Problem: err.Error()}
	}
	return nil
}

// maxSimulated is how many nodes one process simulates: each takes some 100 KB, and renews its lease every 10 s.
const maxSimulated = 20_000

// ParseNodeMode reads real, simulated:N or none.
func ParseNodeMode(s string) (NodeMode, error) {
	switch {
	case s == "real":
		return NodeMode{Real: true}, nil
	case s == "none":
		return NodeMode{}, nil
	case strings.HasPrefix(s, "simulated:"):
		n, err := strconv.Atoi(strings.TrimPrefix(s, "simulated:"))
		if err == nil && n > 0 && n <= maxSimulated {
			return NodeMode{Simulated: n}, nil
		}
		return NodeMode{}, fmt.Errorf("expected simulated:N with N from 1 to %d, found %q", maxSimulated, s)
	}
	return NodeMode{}, fmt.Errorf("expected real, simulated:N or none, found %q", s)
}

var clusterName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$`)

// Complete fills in what follows from other fields, and checks every value. The
// errors name fields by their path, and say where in the file it was given.
func (c *Configuration) Complete() error {
	err := c.complete()
	var wrong *strictyaml.FieldError
	if errors.As(err, &wrong) && c.root != nil {
		if line := lineOf(c.root, wrong.Path); line > 0 {
			wrong.File, wrong.Line = c.File, line
		}
	}
	return err
}

func (c *Configuration) complete() error {
	for i, kind := range c.PolicyKinds {
		if !slices.Contains(PolicyProjects(), kind) {
			return field(fmt.Sprintf("policyKinds[%d]", i), "expected one of %v, found %q", PolicyProjects(), kind)
		}
	}
	if err := c.checkFeatures(); err != nil {
		return err
	}
	if !slices.Contains(append(PolicyReportFormats(), ""), c.PolicyReports) {
		return field("policyReports", "expected one of %v, or nothing, found %q", PolicyReportFormats(), c.PolicyReports)
	}
	if c.Profile != "" && c.Profile != Hardened {
		return field("profile", "expected %s, or nothing, found %q", Hardened, c.Profile)
	}
	if !clusterName.MatchString(c.Cluster.Name) {
		return field("cluster.name", "expected 1 to 24 lower-case letters, digits and dashes that begin with a letter, found %q", c.Cluster.Name)
	}
	if err := c.completeNetworks(); err != nil {
		return err
	}
	for path, addr := range map[string]string{
		"apiserver.listen": c.APIServer.Listen, "node.kubeletListen": cmp.Or(c.Node.KubeletListen, usualKubelet),
	} {
		if i := strings.LastIndexByte(addr, ':'); i < 0 || !isPort(addr[i+1:]) {
			return field(path, "expected HOST:PORT, found %q", addr)
		}
	}
	if err := c.checkServing(); err != nil {
		return err
	}
	if err := c.checkPools(); err != nil {
		return err
	}
	if err := c.checkBackup(); err != nil {
		return err
	}
	if c.Join.Light && !c.Join.AsServer {
		return field("join.light", "a light server is a server: expected join.asServer: true beside it")
	}
	if c.Join.Light && len(c.Store.Endpoints) > 0 {
		return field("join.light", "a light server uses the store that other servers keep, and store.endpoints names an external etcd: leave one of them out")
	}
	if c.Store.PeerPort < 1 || c.Store.PeerPort > 65535 {
		return field("store.peerPort", "expected a port, 1 to 65535, found %d", c.Store.PeerPort)
	}
	if c.Store.QuotaBytes < 1<<20 {
		return field("store.quotaBytes", "expected at least 1048576, found %d", c.Store.QuotaBytes)
	}
	if c.Store.NamespaceQuotaBytes < -1 {
		return field("store.namespaceQuotaBytes", "expected a number of bytes, 0 for a quarter of quotaBytes, or -1 for no bound, found %d", c.Store.NamespaceQuotaBytes)
	}
	if (c.Store.CertFile == "") != (c.Store.KeyFile == "") {
		return field("store.certFile", "certFile and keyFile belong together; only one is given")
	}
	for path, mode := range map[string]string{
		"apiserver.audit.logMode":     c.APIServer.Audit.LogMode,
		"apiserver.audit.webhookMode": c.APIServer.Audit.WebhookMode,
	} {
		if !slices.Contains([]string{"", "batch", "blocking", "blocking-strict"}, mode) {
			return field(path, "expected batch, blocking or blocking-strict, found %q", mode)
		}
	}
	if a := c.APIServer; a.AuditPolicyFile != "" && a.AuditLogFile == "" && a.Audit.WebhookConfigFile == "" {
		return field("apiserver.auditPolicyFile", "a policy alone writes nothing: give auditLogFile or audit.webhookConfigFile too")
	}
	if a := c.APIServer; a.MaxRequestsInFlight < 1 || a.MaxMutatingRequestsInFlight < 1 {
		return field("apiserver.maxRequestsInFlight", "expected at least 1 here and in maxMutatingRequestsInFlight, found %d and %d",
			a.MaxRequestsInFlight, a.MaxMutatingRequestsInFlight)
	}
	if w := c.APIServer.TokenWebhook; !slices.Contains([]string{"", "v1", "v1beta1"}, w.Version) {
		return field("apiserver.tokenWebhook.version", "expected v1 or v1beta1, found %q", w.Version)
	} else if w.ConfigFile == "" && w != (TokenWebhook{}) {
		return field("apiserver.tokenWebhook.configFile", "name the kubeconfig of the service; without it nobody is asked")
	}
	if h := c.APIServer.RequestHeader; h.ClientCAFile != "" && len(h.AllowedNames) == 0 {
		return field("apiserver.requestHeader.allowedNames", "name the proxies' common names: without, every certificate of %s could claim to be anyone", h.ClientCAFile)
	}
	if slices.Contains(c.APIServer.ServiceAccountOldIssuers, c.APIServer.ServiceAccountIssuer) {
		return field("apiserver.serviceAccountOldIssuers", "%s is the present issuer; list others only", c.APIServer.ServiceAccountIssuer)
	}
	if c.APIServer.ServiceAccountMaxTokenLifetime != 0 && time.Duration(c.APIServer.ServiceAccountMaxTokenLifetime) < time.Hour {
		return field("apiserver.serviceAccountMaxTokenLifetime", "expected at least 1h, found %s",
			time.Duration(c.APIServer.ServiceAccountMaxTokenLifetime))
	}
	if t := time.Duration(c.Scheduler.VolumeBindingTimeout); t < time.Second {
		return field("scheduler.volumeBindingTimeout", "expected at least 1s, found %s", t)
	}
	if err := c.LeaderElection.check(); err != nil {
		return err
	}
	if n := c.Node; (n.ImageCredentialProviderConfig == "") != (n.ImageCredentialProviderBinDir == "") {
		return field("node.imageCredentialProviderConfig", "expected imageCredentialProviderBinDir with it, or neither")
	}
	if c.Node.EnableSystemLogQuery && !c.Node.EnableSystemLogHandler {
		return field("node.enableSystemLogQuery", "expected enableSystemLogHandler: true with it, as queries are answered by that")
	}
	if err := c.Node.checkManagers(); err != nil {
		return err
	}
	if err := c.Node.checkRuntimeHandlers(); err != nil {
		return err
	}
	if n := c.Node.PodNetwork; !slices.Contains([]string{"auto", "routes", "vxlan"}, n.Backend) {
		return field("node.podNetwork.backend", "expected auto, routes or vxlan, found %q", n.Backend)
	} else if n.MTU != 0 && (n.MTU < 576 || n.MTU > 65000) {
		return field("node.podNetwork.mtu", "expected 576 to 65000, or 0 for what the machine's link leaves, found %d", n.MTU)
	} else if n.MTU != 0 && n.MTU < LeastMTU6 && c.Cluster.hasIPv6() {
		return field("node.podNetwork.mtu", "expected at least %d, which every IPv6 link carries (RFC 8200), found %d", LeastMTU6, n.MTU)
	}
	if n := c.Node.PodPidsLimit; n < -1 || n > 0 && n < leastPodPids {
		return field("node.podPidsLimit", "expected at least %d (a runtime in a container takes as many), or -1 for no bound, found %d", leastPodPids, n)
	}
	if c.Node.MaxPods < 1 {
		return field("node.maxPods", "expected at least 1, found %d", c.Node.MaxPods)
	}
	for name, ports := range map[string][]int32{
		"node.reservedHostPorts": c.Node.ReservedHostPorts, "node.reservedUDPHostPorts": c.Node.ReservedUDPHostPorts,
	} {
		for _, port := range ports {
			if port < 1 || port > 65535 {
				return field(name, "expected ports from 1 to 65535, found %d", port)
			}
		}
	}
	if i := c.Node.Images; min(i.LayerBytes, i.ImageBytes, i.LayerFiles, i.ImageFiles) < 0 {
		return field("node.images", "expected bounds of at least 0, found %d", min(i.LayerBytes, i.ImageBytes, i.LayerFiles, i.ImageFiles))
	}
	if err := c.Node.checkEviction(); err != nil {
		return err
	}
	if err := c.Node.checkReserved(); err != nil {
		return err
	}
	if n := c.Node; n.ImageMinimumGCAge < 0 {
		return field("node.imageMinimumGCAge", "expected at least 0s, found %v", time.Duration(n.ImageMinimumGCAge))
	} else if n.ImageMaximumGCAge < 0 || n.ImageMaximumGCAge > 0 && n.ImageMaximumGCAge <= n.ImageMinimumGCAge {
		return field("node.imageMaximumGCAge", "expected more than imageMinimumGCAge (%v), or 0s for ever, found %v",
			time.Duration(n.ImageMinimumGCAge), time.Duration(n.ImageMaximumGCAge))
	}
	if err := c.Node.checkShutdown(); err != nil {
		return err
	}
	if p := c.Node.HealthzPort; p < 0 || p > 65535 {
		return field("node.healthzPort", "expected a port, 1 to 65535, or 0 for none, found %d", p)
	}
	if n := c.Node; n.ImageGCHighThresholdPercent > 100 || n.ImageGCLowThresholdPercent >= n.ImageGCHighThresholdPercent {
		return field("node.imageGCHighThresholdPercent", "expected at most 100 and more than imageGCLowThresholdPercent, found %d and %d",
			n.ImageGCHighThresholdPercent, n.ImageGCLowThresholdPercent)
	}
	if s, usual := c.Scheduler, Default().Scheduler; s.ConfigFile != "" &&
		(len(s.Profiles)+len(s.TopologySpread.DefaultConstraints) > 0 || s.VolumeBindingTimeout != usual.VolumeBindingTimeout ||
			s.TopologySpread.DefaultingType != usual.TopologySpread.DefaultingType) {
		return field("scheduler.configFile", "the file says what profiles, topologySpread and volumeBindingTimeout would say: leave these away")
	}
	seen := map[string]bool{}
	for i, p := range c.Scheduler.Profiles {
		if p.Name == "" || seen[p.Name] {
			return field(fmt.Sprintf("scheduler.profiles[%d].name", i), "every profile needs a name of its own, found %q", p.Name)
		}
		seen[p.Name] = true
		if p.TopologySpread != nil {
			if err := p.TopologySpread.check(fmt.Sprintf("scheduler.profiles[%d].topologySpread", i)); err != nil {
				return err
			}
		}
	}
	return c.Scheduler.TopologySpread.check("scheduler.topologySpread")
}

// check names fields below path.
func (t *TopologySpread) check(path string) error {
	switch t.DefaultingType {
	case "", "System":
		if len(t.DefaultConstraints) > 0 {
			return field(path+".defaultConstraints", "these need defaultingType: List; System has its own")
		}
	case "List":
	default:
		return field(path+".defaultingType", "expected System or List, found %q", t.DefaultingType)
	}
	type pair struct{ key, when string }
	seen := map[pair]bool{}
	for i, c := range t.DefaultConstraints {
		at := fmt.Sprintf("%s.defaultConstraints[%d]", path, i)
		switch problems := validation.IsQualifiedName(c.TopologyKey); {
		case c.MaxSkew < 1:
			return field(at+".maxSkew", "expected at least 1, found %d", c.MaxSkew)
		case len(problems) > 0:
			return field(at+".topologyKey", "expected the name of a label such as topology.kubernetes.io/zone, found %q", c.TopologyKey)
		case c.WhenUnsatisfiable != "DoNotSchedule" && c.WhenUnsatisfiable != "ScheduleAnyway":
			return field(at+".whenUnsatisfiable", "expected DoNotSchedule or ScheduleAnyway, found %q", c.WhenUnsatisfiable)
		case seen[pair{c.TopologyKey, c.WhenUnsatisfiable}]:
			return field(at, "a constraint with this topologyKey and whenUnsatisfiable is there already")
		}
		seen[pair{c.TopologyKey, c.WhenUnsatisfiable}] = true
	}
	return nil
}

func (c *Configuration) checkServing() error {
	for path, s := range map[string]Serving{"scheduler.serving": c.Scheduler.Serving, "controllers.serving": c.Controllers.Serving} {
		if !isListen(s.Listen) {
			return field(path+".listen", "expected HOST:PORT or none, found %q", s.Listen)
		}
		if (s.CertFile == "") != (s.KeyFile == "") {
			return field(path+".certFile", "certFile and keyFile belong together; only one is given")
		}
	}
	if listen := c.Proxy.HealthListen; !isListen(listen) {
		return field("proxy.healthListen", "expected HOST:PORT or none, found %q", listen)
	}
	listen := c.Proxy.MetricsListen
	host, _, err := net.SplitHostPort(listen)
	if addr, parsed := netip.ParseAddr(host); !isListen(listen) || err == nil && (parsed != nil || !addr.IsLoopback()) {
		return field("proxy.metricsListen", "expected a loopback address such as 127.0.0.1:10249, or none, found %q", listen)
	}
	return nil
}

func isListen(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return s == "" || s == NoListen || err == nil && isPort(port)
}

func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 0 && n < 65536
}
