// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	fcmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/feature"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*
	_ "k8s.io/component-base/metrics/prometheus/version"    // kubernetes_build_info

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/readiness"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/whyapi"
	"github.com/wasmplane/wasmplane/core/airgap/lending"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/health"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/unitgraph"
	"github.com/wasmplane/wasmplane/core/trace/otlp"
)

// front answers requests.
type front struct {
	*apiserver.Server
	audit    *audit.Log            // nil = none
	fairness flowcontrol.Interface // nil = off
}

func newFront(ctx context.Context, b base, st *storage, who *authentication, may *authorization, r *resources,
	tracer oteltrace.Tracer, trials func() whyapi.Trials, checks []health.Check,
) (_ *front, err error) {
	serving, err := b.Authority.APIServer()
	if err != nil {
		return nil, err
	}
	kubelets, err := b.Authority.Client(pki.KubeletClient())
	if err != nil {
		return nil, err
	}
	listener, err := b.Listen(ctx, b.Options.Config.Node.Mode.Real)
	if err != nil {
		return nil, err
	}
	recordFeatures(ctx, b.Options.Config.FeatureGates)
	f := &front{fairness: b.openFairness()}
	if f.audit, err = b.openAudit(); err != nil {
		return nil, err
	}
	c, spans, giver := b.Options.Config.APIServer, b.spans.Handler(), b.giver(st)
	f.Server, err = apiserver.New(apiserver.Config{
		Audit:               f.recorder(),
		Aggregator:          r.remotes,
		Contract:            b.contract,
		Registries:          r.registries,
		Authenticator:       who.Authenticator,
		Authorizer:          may.Chain,
		Tokens:              who.issuer,
		Reviewer:            who,
		Listener:            listener,
		TLS:                 pki.AskingFor(pki.WithAuthority(pki.ServerTLS(serving), b.Authority.ClusterCA), who.vouching),
		Kubelet:             b.kubeletClient(kubelets),
		OpenIDConfiguration: who.openID[satoken.ConfigPath],
		JWKS:                who.openID[satoken.KeysPath],
		Mounts: []apiserver.Mount{
			{Prefix: unitgraph.Path, Handler: unitgraph.Handler(b.group.Status)},
			{Prefix: otlp.SpansPath, Handler: spans},
			{Prefix: otlp.JourneyPath, Handler: spans},
			{Prefix: whyapi.Path, Handler: whyapi.NewHandler(whyapi.Handler{API: b.local, Trials: trials, Logger: b.Options.Logger})},
			{Prefix: handover.MembersPath, Handler: giver},
			{Prefix: handover.OpenPath, Handler: giver},
			{Prefix: handover.JoinPath, Handler: giver},
			{Prefix: handover.StorePath, Handler: giver},
			{Prefix: backup.Path, Handler: backup.Handler(st.disk, b.Options.Logger), Long: true},
			{Prefix: lending.Path, Handler: b.shelf, Long: true},
		},
		CatchUp:   r.custom.CatchUp,
		Fairness:  f.fairness,
		MaxReads:  c.MaxRequestsInFlight,
		MaxWrites: c.MaxMutatingRequestsInFlight,
		Checks:    checks,
		Metrics:   b.metrics,
		Gatherer:  prometheus.Gatherers{b.metrics, legacyregistry.DefaultGatherer},
		Flags:     b.Options.Flags,
		Logger:    b.Options.Logger,
		Tracer:    tracer,
	})
	return f, err
}

// recordFeatures says which of the gates that can be set are open, as upstream's metric has it.
func recordFeatures(ctx context.Context, gates map[string]bool) {
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, name := range config.FeatureGates() {
		feature.RecordFeatureInfo(ctx, name, string(known[featuregate.Feature(name)].PreRelease), gates[name])
	}
}

// recorder is the audit log as an interface that is nil where there is none.
func (f *front) recorder() apiserver.Audit {
	if f.audit == nil {
		return nil
	}
	return f.audit
}

// kubeletClient is the apiserver towards kubelets.
func (b base) kubeletClient(pair *pki.Pair) *tunnel.KubeletClient {
	pods := process.OperatorsDial(b.Options)
	kubelets := *pods
	kubelets.Through = nil // a machine is connected to directly
	return &tunnel.KubeletClient{TLS: b.Authority.ClientTLS(pair), Dial: kubelets.Context(), DialPods: pods.Context()}
}

// openAudit opens the audit log, where the configuration asks for one.
func (b base) openAudit() (log *audit.Log, err error) {
	c := b.Options.Config.APIServer
	if c.AuditLogFile == "" && c.Audit.WebhookConfigFile == "" {
		return nil, nil
	}
	policy := b.Options.Config.Path(c.AuditPolicyFile)
	if policy != "" {
		b.follows.add("the audit policy", func(ctx context.Context) error { return log.Reload(ctx) }, policy)
	}
	a := c.Audit
	return audit.Open(audit.Config{
		PolicyFile: policy, File: b.Options.Config.Path(c.AuditLogFile), Dial: process.OperatorsDial(b.Options), Log: b.Options.Logger,
		FileTarget: audit.Target{Mode: audit.Mode(a.LogMode), MaxEventBytes: a.LogMaxEventBytes},
		MaxBytes:   a.LogMaxBytes, MaxFiles: a.LogMaxFiles, MaxAge: time.Duration(a.LogMaxAge),
		WebhookFile: b.Options.Config.Path(a.WebhookConfigFile), InitialBackoff: time.Duration(a.WebhookInitialBackoff),
		WebhookTarget: audit.Target{
			Mode: audit.Mode(a.WebhookMode), BufferEvents: a.WebhookBufferEvents, BatchEvents: a.WebhookBatchEvents,
			BatchWait: time.Duration(a.WebhookBatchWait), MaxEventBytes: a.WebhookMaxEventBytes,
		},
	})
}

// openFairness makes the controller of priority and fairness, which the server's
// own informers feed; nil where the configuration turns it off.
func (b base) openFairness() flowcontrol.Interface {
	c := b.Options.Config.APIServer
	if !c.Fairness {
		return nil
	}
	fcmetrics.Register()
	return flowcontrol.New(b.informers, b.internal.Kube.FlowcontrolV1(), c.MaxRequestsInFlight+c.MaxMutatingRequestsInFlight)
}

// closeAudit writes what the audit log still holds; nothing follows it.
func (f *front) closeAudit() error {
	if f.audit == nil {
		return nil
	}
	return f.audit.Close()
}

// runFairness follows FlowSchemas and priority levels until ctx ends.
func (f *front) runFairness(ctx context.Context, begun *readiness.Milestone) error {
	if !run.Await(ctx, f.Ready()) {
		return nil
	}
	begun.Reach()
	if f.fairness == nil {
		<-ctx.Done()
		return nil
	}
	if err := f.fairness.Run(ctx.Done()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("priority and fairness: %w", err)
	}
	return nil
}
