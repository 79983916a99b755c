// SPDX-License-Identifier: Apache-2.0

package all

import (
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/aggregation"
	"github.com/wasmplane/wasmplane/core/controllers/approval"
	"github.com/wasmplane/wasmplane/core/controllers/attachdetach"
	"github.com/wasmplane/wasmplane/core/controllers/bootstraptoken"
	"github.com/wasmplane/wasmplane/core/controllers/cronjob"
	"github.com/wasmplane/wasmplane/core/controllers/daemonset"
	"github.com/wasmplane/wasmplane/core/controllers/deployment"
	"github.com/wasmplane/wasmplane/core/controllers/devicetaints"
	"github.com/wasmplane/wasmplane/core/controllers/disruption"
	"github.com/wasmplane/wasmplane/core/controllers/dnsendpoints"
	"github.com/wasmplane/wasmplane/core/controllers/endpoints"
	"github.com/wasmplane/wasmplane/core/controllers/endpointslice"
	"github.com/wasmplane/wasmplane/core/controllers/ephemeralvolume"
	"github.com/wasmplane/wasmplane/core/controllers/garbage"
	"github.com/wasmplane/wasmplane/core/controllers/helmchart"
	"github.com/wasmplane/wasmplane/core/controllers/job"
	"github.com/wasmplane/wasmplane/core/controllers/legacytokens"
	"github.com/wasmplane/wasmplane/core/controllers/localprovision"
	"github.com/wasmplane/wasmplane/core/controllers/namespace"
	"github.com/wasmplane/wasmplane/core/controllers/nodeipam"
	"github.com/wasmplane/wasmplane/core/controllers/nodelifecycle"
	"github.com/wasmplane/wasmplane/core/controllers/nodettl"
	"github.com/wasmplane/wasmplane/core/controllers/podautoscaler"
	"github.com/wasmplane/wasmplane/core/controllers/podgc"
	"github.com/wasmplane/wasmplane/core/controllers/podgroupprotection"
	"github.com/wasmplane/wasmplane/core/controllers/policystatus"
	"github.com/wasmplane/wasmplane/core/controllers/poolstatus"
	"github.com/wasmplane/wasmplane/core/controllers/replicaset"
	"github.com/wasmplane/wasmplane/core/controllers/requestcleaner"
	"github.com/wasmplane/wasmplane/core/controllers/resourceclaim"
	"github.com/wasmplane/wasmplane/core/controllers/resourcequota"
	"github.com/wasmplane/wasmplane/core/controllers/rootca"
	"github.com/wasmplane/wasmplane/core/controllers/serviceaccount"
	"github.com/wasmplane/wasmplane/core/controllers/servicecidr"
	"github.com/wasmplane/wasmplane/core/controllers/servicelb"
	"github.com/wasmplane/wasmplane/core/controllers/signing"
	"github.com/wasmplane/wasmplane/core/controllers/statefulset"
	"github.com/wasmplane/wasmplane/core/controllers/storagemigration"
	"github.com/wasmplane/wasmplane/core/controllers/trustbundle"
	"github.com/wasmplane/wasmplane/core/controllers/ttlafterfinished"
	"github.com/wasmplane/wasmplane/core/controllers/volumebinding"
	"github.com/wasmplane/wasmplane/core/controllers/volumeexpand"
	"github.com/wasmplane/wasmplane/core/controllers/volumeprotection"
	"github.com/wasmplane/wasmplane/core/controllers/wasmclass"
)

// entry is one built-in controller.
type entry struct {
	// name as upstream's --controllers knows it.
	name string
	// account in kube-system under which it works; empty = the process's own.
	account string
	// workers that reconcile side by side, by default.
	workers int
	// off: runs only if it is named.
	off bool
	// build may return nil: the configuration gives it nothing to do.
	build func(*builder, built) (runner, error)
}

// built is what one controller is built with.
type built struct {
	controllers.Env
	clients *client.Set
	workers int
}

// of builds a controller that needs nothing but its environment.
func of[R runner](build func(controllers.Env, int) (R, error)) func(*builder, built) (runner, error) {
	return func(_ *builder, e built) (runner, error) { return build(e.Env, e.workers) }
}

// list is every built-in controller. Service accounts and tokens come first, for
// without them no pod is admitted.
func list() []entry {
	return []entry{
		{name: "serviceaccount-token-controller", workers: 5, build: func(b *builder, e built) (runner, error) {
			if b.Minter == nil {
				return nil, nil
			}
			return serviceaccount.NewTokens(e.Env, e.workers, b.Minter, b.RootCA)
		}},
		{name: legacytokens.Name, account: "legacy-service-account-token-cleaner", workers: 1, build: of(legacytokens.New)},
		{name: "serviceaccount-controller", account: "service-account-controller", workers: 1, build: of(serviceaccount.New)},
		{
			name: "root-ca-certificate-publisher-controller", account: "root-ca-cert-publisher", workers: 1,
			build: func(b *builder, e built) (runner, error) {
				if b.RootCA == nil {
					return nil, nil
				}
				return rootca.New(e.Env, e.workers, b.RootCA)
			},
		},
		{
			name: trustbundle.Name, account: "kube-apiserver-serving-clustertrustbundle-publisher", workers: 1,
			build: func(b *builder, e built) (runner, error) {
				if b.RootCA == nil {
					return nil, nil
				}
				return trustbundle.New(e.Env, b.RootCA)
			},
		},
		{name: "clusterrole-aggregation-controller", account: "clusterrole-aggregation-controller", workers: 5, build: of(aggregation.New)},
		{
			name: "certificatesigningrequest-approving-controller", account: "certificate-controller", workers: 2,
			build: func(b *builder, e built) (runner, error) {
				return approval.New(e.Env, e.workers, b.Serving)
			},
		},
		{
			name: "certificatesigningrequest-signing-controller", account: "certificate-controller", workers: 2,
			build: func(b *builder, e built) (runner, error) {
				if b.CertificateAuthority == nil {
					return nil, nil
				}
				return signing.New(e.Env, e.workers, b.CertificateAuthority)
			},
		},
		{
			name: "certificatesigningrequest-cleaner-controller", account: "certificate-controller", workers: 1,
			build: func(_ *builder, e built) (runner, error) {
				return requestcleaner.New(e.Env, e.workers), nil
			},
		},
		{
			name: "podcertificaterequest-cleaner-controller", account: "podcertificaterequestcleaner", workers: 1,
			build: func(_ *builder, e built) (runner, error) {
				return requestcleaner.NewPods(e.Env, e.workers), nil
			},
		},
		{name: "token-cleaner-controller", account: "token-cleaner", workers: 1, build: func(b *builder, e built) (runner, error) {
			if !b.BootstrapTokens {
				return nil, nil
			}
			return bootstraptoken.NewCleaner(e.Env, e.workers)
		}},
		{name: "bootstrap-signer-controller", account: "bootstrap-signer", workers: 1, build: func(b *builder, e built) (runner, error) {
			if !b.BootstrapTokens {
				return nil, nil
			}
			return bootstraptoken.NewSigner(e.Env)
		}},
		{name: "node-ipam-controller", account: "node-controller", workers: 1, build: func(b *builder, e built) (runner, error) {
			if len(b.NodeIPAM.CIDRs) == 0 {
				return nil, nil
			}
			return nodeipam.New(e.Env, b.NodeIPAM)
		}},
		{name: "ttl-controller", account: "ttl-controller", workers: 5, build: of(nodettl.New)},
		{name: "node-lifecycle-controller", account: "node-controller", workers: 8, build: func(b *builder, e built) (runner, error) {
			return nodelifecycle.New(e.Env, e.workers, b.NodeLifecycle)
		}},
		{name: "taint-eviction-controller", account: "node-controller", workers: 8, build: of(nodelifecycle.NewEvictor)},
		{
			name: "pod-garbage-collector-controller", account: "pod-garbage-collector", workers: 4,
			build: func(b *builder, e built) (runner, error) {
				return podgc.New(e.Env, e.workers, b.FinishedPods)
			},
		},
		{name: "namespace-controller", account: "namespace-controller", workers: 10, build: func(_ *builder, e built) (runner, error) {
			return namespace.New(e.Env, e.workers, e.clients.Metadata, nil)
		}},
		{
			name: "garbage-collector-controller", account: "generic-garbage-collector", workers: 20,
			build: func(b *builder, e built) (runner, error) {
				shared, err := b.sharedInformers()
				if err != nil {
					return nil, err
				}
				return garbage.New(e.Env, e.workers, garbage.Config{Metadata: e.clients.Metadata, Shared: shared})
			},
		},
		{
			name: "validatingadmissionpolicy-status-controller", account: "validatingadmissionpolicy-status-controller", workers: 1,
			build: of(policystatus.New),
		},
		{
			name: "storage-version-migrator-controller", account: "storage-version-migrator-controller", workers: 1,
			build: func(_ *builder, e built) (runner, error) {
				return storagemigration.New(e.Env, e.workers, e.clients.Metadata)
			},
		},
		{name: "resourcequota-controller", account: "resourcequota-controller", workers: 5, build: func(_ *builder, e built) (runner, error) {
			return resourcequota.New(e.Env, e.workers, e.clients.Metadata)
		}},
		{name: "replicationcontroller-controller", account: "replication-controller", workers: 5, build: of(replicaset.NewReplication)},
		{name: "replicaset-controller", account: "replicaset-controller", workers: 5, build: of(replicaset.New)},
		{name: "deployment-controller", account: "deployment-controller", workers: 5, build: of(deployment.New)},
		{name: "daemonset-controller", account: "daemon-set-controller", workers: 2, build: of(daemonset.New)},
		{name: "statefulset-controller", account: "statefulset-controller", workers: 5, build: of(statefulset.New)},
		{name: "endpoints-controller", account: "endpoint-controller", workers: 5, build: of(endpoints.New)},
		{name: "endpointslice-controller", account: "endpointslice-controller", workers: 5, build: of(endpointslice.New)},
		{
			name: "endpointslice-mirroring-controller", account: "endpointslicemirroring-controller", workers: 5,
			build: of(endpointslice.NewMirror),
		},
		{name: "dns-endpoints-controller", account: "endpointslice-controller", workers: 1, build: func(_ *builder, e built) (runner, error) {
			return dnsendpoints.New(e.Env)
		}},
		{name: "service-cidr-controller", account: "service-cidrs-controller", workers: 1, build: func(b *builder, e built) (runner, error) {
			return servicecidr.New(e.Env, servicecidr.Config{Pods: b.NodeIPAM.CIDRs, LoadBalancers: b.LoadBalancer.Pools})
		}},
		{name: "service-lb-controller", account: "service-controller", workers: 1, build: func(b *builder, e built) (runner, error) {
			return servicelb.New(e.Env, b.LoadBalancer)
		}},
		{name: "job-controller", account: "job-controller", workers: 5, build: of(job.New)},
		{name: "cronjob-controller", account: "cronjob-controller", workers: 5, build: of(cronjob.New)},
		{
			name: "horizontal-pod-autoscaler-controller", account: "horizontal-pod-autoscaler", workers: 5,
			build: func(_ *builder, e built) (runner, error) {
				return podautoscaler.New(e.Env, e.workers, e.clients.Dynamic)
			},
		},
		{name: "ttl-after-finished-controller", account: "ttl-after-finished-controller", workers: 2, build: of(ttlafterfinished.New)},
		{name: "persistentvolume-binder-controller", account: "persistent-volume-binder", workers: 2, build: of(volumebinding.New)},
		{name: "persistentvolume-attach-detach-controller", account: "attachdetach-controller", workers: 5, build: of(attachdetach.New)},
		{name: "persistentvolume-expander-controller", account: "expand-controller", workers: 1, build: of(volumeexpand.New)},
		{name: "ephemeral-volume-controller", account: "ephemeral-volume-controller", workers: 5, build: of(ephemeralvolume.New)},
		{name: "resourceclaim-controller", account: "resource-claim-controller", workers: 10, build: of(resourceclaim.New)},
		{name: "device-taint-eviction-controller", account: "device-taint-eviction-controller", workers: 8, build: of(devicetaints.New)},
		{
			name: poolstatus.Name, account: "resourcepoolstatusrequest-controller", workers: 1,
			build: func(b *builder, e built) (runner, error) {
				if !b.PoolStatus {
					return nil, nil
				}
				return poolstatus.New(e.Env, e.workers)
			},
		},
		{name: "local-volume-controller", account: "local-volume-controller", workers: 2, build: func(_ *builder, e built) (runner, error) {
			return localprovision.New(e.Env, e.workers, e.clients.Dynamic)
		}},
		{name: "wasm-class-controller", account: "wasm-class-controller", build: func(_ *builder, e built) (runner, error) {
			return wasmclass.New(e.Env), nil
		}},
		{name: helmchart.Name, account: helmchart.Account, workers: 4, build: func(b *builder, e built) (runner, error) {
			if b.Charts == nil {
				return nil, nil
			}
			return helmchart.New(e.Env, e.workers, e.clients.Dynamic, *b.Charts)
		}},
		{
			name: "persistentvolumeclaim-protection-controller", account: "pvc-protection-controller", workers: 2,
			build: of(volumeprotection.NewClaims),
		},
		{name: "persistentvolume-protection-controller", account: "pv-protection-controller", workers: 1, build: of(volumeprotection.NewVolumes)},
		{
			name: "volumeattributesclass-protection-controller", account: "volumeattributesclass-protection-controller", workers: 1,
			build: of(volumeprotection.NewClasses),
		},
		{
			name: "podgroup-protection-controller", account: "podgroup-protection-controller", workers: 2,
			build: func(b *builder, e built) (runner, error) {
				if !b.PodGroups {
					return nil, nil
				}
				return podgroupprotection.New(e.Env, e.workers)
			},
		},
		{name: "disruption-controller", account: "disruption-controller", workers: 2, build: func(_ *builder, e built) (runner, error) {
			return disruption.New(e.Env, e.workers, e.clients.Dynamic)
		}},
	}
}
