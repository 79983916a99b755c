// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/hardened"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/dial"
)

// apiServer is section 1.2.
func apiServer() []recommendation {
	return []recommendation{
		{"1.2.1", "nobody is anonymous but for health", anonymous},
		{"1.2.2", "there is no file of tokens", tokenFile},
		{"1.2.3", "DenyServiceExternalIPs is on", externalIPs},
		{"1.2.4", "the apiserver shows kubelets a certificate", always("built in")},
		{"1.2.5", "the apiserver verifies kubelets", always("built in")},
		{"1.2.6", "authorization is not AlwaysAllow", authorizer("")},
		{"1.2.7", "Node authorizes", authorizer("Node")},
		{"1.2.8", "RBAC authorizes", authorizer("RBAC")},
		{"1.2.9", "EventRateLimit is on", enabled("EventRateLimit")},
		{"1.2.10", "AlwaysAdmit is off", always("built in: there is none")},
		{"1.2.11", "AlwaysPullImages is on", pullImages},
		{"1.2.12", "ServiceAccount is on", notDisabled("ServiceAccount")},
		{"1.2.13", "NamespaceLifecycle is on", always("built in: it cannot be disabled")},
		{"1.2.14", "NodeRestriction is on", always("built in: it cannot be disabled")},
		{"1.2.15", "profiles are not for everybody (and 1.3.2, 1.4.1)", always("built in: /debug/pprof is behind authorization")},
		{"1.2.16", "there is an audit log", audited},
		{"1.2.17", "it is kept for 30 days", auditAge},
		{
			"1.2.18", "ten of its files are kept",
			auditNumber("apiserver.audit.logMaxFiles", 10, func(a config.Audit) int64 { return int64(a.LogMaxFiles) }),
		},
		{
			"1.2.19", "a file of it has 100 MB",
			auditNumber("apiserver.audit.logMaxBytes", 100<<20, func(a config.Audit) int64 { return a.LogMaxBytes }),
		},
		{"1.2.20", "requests end in time", always("built in: after a minute")},
		{"1.2.21", "tokens of service accounts that are gone are refused", always("built in")},
		{"1.2.22", "tokens are signed by a key of their own", always("built in")},
		{"1.2.23", "the apiserver shows etcd a certificate", etcdField("store.certFile", func(s config.Store) string { return s.CertFile })},
		{"1.2.24", "the API is served by TLS", always("built in")},
		{"1.2.25", "client certificates are of the cluster's authority", always("built in")},
		{"1.2.26", "the apiserver verifies etcd", etcdField("store.caFile", func(s config.Store) string { return s.CAFile })},
		{"1.2.27", "Secrets are encrypted at rest", encrypted},
		{"1.2.28", "their first provider is a strong one", strongProvider},
		{"1.2.29", "ciphers are strong", always("built in: TLS 1.2 with AEAD ciphers, and TLS 1.3")},
		{"1.2.30", "tokens are not extended", func(context.Context, *subject) verdict {
			return manual("read the token file again before it is an hour old, and serviceaccount_stale_tokens_total stays 0", "tokens that pods mount are extended to a year, for clients that never read them again")
		}},
	}
}

func anonymous(ctx context.Context, s *subject) verdict {
	const do = "anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}, {path: /healthz}]} in apiserver.authenticationConfigFile"
	if file := s.config.APIServer.AuthenticationConfigFile; file != "" {
		var doc struct {
			Anonymous *struct {
				Enabled    bool             `json:"enabled"`
				Conditions []map[string]any `json:"conditions"`
			} `json:"anonymous"`
		}
		data, err := os.ReadFile(s.config.Path(file))
		if err == nil {
			err = yaml.Unmarshal(data, &doc)
		}
		if err != nil {
			return manual("", "%s: %v", file, err)
		}
		if a := doc.Anonymous; a != nil && a.Enabled && len(a.Conditions) == 0 {
			return lacking(do, "%s lets everybody in as anonymous", file)
		}
	}
	if s.kube == nil {
		return met("as configured: health only")
	}
	nobody, err := kubernetes.NewForConfig(s.nobody)
	if err != nil {
		return manual("", "%v", err)
	}
	if _, err := nobody.RESTClient().Get().AbsPath("/api/v1/namespaces").DoRaw(ctx); !apierrors.IsUnauthorized(err) &&
		!apierrors.IsForbidden(err) {
		return lacking(do, "asked without credentials, the server answers: %v", err)
	}
	return met("asked without credentials, the server refuses")
}

func tokenFile(_ context.Context, s *subject) verdict {
	if a := s.config.APIServer; a.TokenFile != "" || a.BasicAuthFile != "" {
		return lacking("use certificates, OpenID Connect or service accounts", "apiserver.tokenFile is %q, apiserver.basicAuthFile %q",
			a.TokenFile, a.BasicAuthFile)
	}
	return met("nor one of passwords")
}

func authorizer(kind string) func(context.Context, *subject) verdict {
	return func(_ context.Context, s *subject) verdict {
		file := s.config.APIServer.AuthorizationConfigFile
		if file == "" {
			return met("built in: Node, RBAC")
		}
		entries, err := authz.LoadFile(s.config.Path(file), dial.Operator(nil))
		if err != nil {
			return manual("", "%v", err)
		}
		if kind == "" || slices.ContainsFunc(entries, func(e authz.Entry) bool { return e.Type == kind }) {
			return met("%s", file)
		}
		return lacking("add it to "+file, "%s does not list it", file)
	}
}

func enabled(name string) func(context.Context, *subject) verdict {
	return func(_ context.Context, s *subject) verdict {
		if slices.Contains(s.config.APIServer.EnableAdmissionPlugins, name) {
			return met("apiserver.enableAdmissionPlugins")
		}
		return lacking(profile+"apiserver.enableAdmissionPlugins: ["+name+"]", "it is off")
	}
}

func notDisabled(name string) func(context.Context, *subject) verdict {
	return func(_ context.Context, s *subject) verdict {
		if slices.Contains(s.config.APIServer.DisableAdmissionPlugins, name) {
			return lacking("take it out of apiserver.disableAdmissionPlugins", "it is disabled")
		}
		return met("by default")
	}
}

func pullImages(_ context.Context, s *subject) verdict {
	if slices.Contains(s.config.APIServer.EnableAdmissionPlugins, "AlwaysPullImages") {
		return met("apiserver.enableAdmissionPlugins")
	}
	return manual("where tenants with private images share nodes: apiserver.enableAdmissionPlugins: [AlwaysPullImages]", "it is off, also with the profile: images that were imported are in no registry")
}

func audited(_ context.Context, s *subject) verdict {
	switch a := s.config.APIServer; {
	case a.AuditLogFile != "":
		return met("%s", a.AuditLogFile)
	case a.Audit.WebhookConfigFile != "":
		return met("by apiserver.audit.webhookConfigFile")
	}
	return lacking(profile+"apiserver.auditLogFile", "there is none")
}

// logged says whether a file is written, whose bounds matter.
func logged(s *subject) bool { return s.config.APIServer.AuditLogFile != "" }

func auditAge(_ context.Context, s *subject) verdict {
	const least = 30 * 24 * time.Hour
	const do = profile + "apiserver.audit.logMaxAge: 720h"
	switch age := time.Duration(s.config.APIServer.Audit.LogMaxAge); {
	case !logged(s):
		return lacking(do, "there is no file")
	case age == 0:
		return lacking(do, "files are kept until there are too many")
	case age < least:
		return lacking(do, "%s", age)
	default:
		return met("%s", age)
	}
}

// auditNumber is of a bound whose default is the recommendation.
func auditNumber(field string, least int64, of func(config.Audit) int64) func(context.Context, *subject) verdict {
	return func(_ context.Context, s *subject) verdict {
		do := fmt.Sprintf("%s%s: %d", profile, field, least)
		switch n := of(s.config.APIServer.Audit); {
		case !logged(s):
			return lacking(do, "there is no file")
		case n == 0:
			return met("%d, by default", least)
		case n < least:
			return lacking(do, "%d", n)
		default:
			return met("%d", n)
		}
	}
}

func etcdField(path string, of func(config.Store) string) func(context.Context, *subject) verdict {
	return func(_ context.Context, s *subject) verdict {
		store := s.config.Store
		if len(store.Endpoints) == 0 {
			return met("built in: etcd is in the process")
		}
		plain := slices.ContainsFunc(store.Endpoints, func(e string) bool { return !strings.HasPrefix(e, "https://") })
		if plain || of(store) == "" {
			return lacking("https:// in store.endpoints, and "+path, "store.endpoints are %q, %s %q", store.Endpoints, path, of(store))
		}
		return met("%s", of(store))
	}
}

func encrypted(_ context.Context, s *subject) verdict {
	file := s.config.Store.EncryptionConfigFile
	if file == "" {
		return lacking(profile+"store.encryptionConfigFile", "they are not")
	}
	if _, err := os.Stat(s.config.Path(file)); err != nil {
		if file == hardened.EncryptionFile(s.dir) {
			return lacking("start the cluster: its key is made then", "the profile's key is not there yet")
		}
		return lacking("make it", "%v", err)
	}
	return met("%s", file)
}

func strongProvider(ctx context.Context, s *subject) verdict {
	if v := encrypted(ctx, s); v.state != meets {
		return v
	}
	var doc struct {
		Resources []struct {
			Resources []string                    `json:"resources"`
			Providers []map[string]map[string]any `json:"providers"`
		} `json:"resources"`
	}
	data, err := os.ReadFile(s.config.Path(s.config.Store.EncryptionConfigFile))
	if err == nil {
		err = yaml.Unmarshal(data, &doc)
	}
	if err != nil {
		return manual("", "%v", err)
	}
	for _, r := range doc.Resources {
		if !slices.ContainsFunc(r.Resources, func(n string) bool { return n == "secrets" || n == "*." || n == "*.*" }) || len(r.Providers) == 0 {
			continue
		}
		for name := range r.Providers[0] {
			switch name {
			case "secretbox", "kms", "aescbc":
				return met("%s", name)
			case "aesgcm":
				return manual("change the key before it has encrypted 200,000 objects", "aesgcm")
			}
			return lacking("make secretbox or kms the first provider of secrets", "%s", name)
		}
	}
	return lacking("add secrets to its resources", "secrets are not in it")
}

// controlPlane are the sections 1.3, 1.4, 2 and 3.
func controlPlane() []recommendation {
	return []recommendation{
		{"1.3.1", "finished pods are bounded", always("built in: 12,500 are kept")},
		{"1.3.3", "each controller has credentials of its own", func(context.Context, *subject) verdict {
			return manual("", "the loops share the identity system:kube-controller-manager with the rights of all of them; they are one process in any case")
		}},
		{"1.3.4", "tokens are signed by a key of their own", always("built in")},
		{"1.3.5", "pods are given the authority of the API", always("built in")},
		{"1.3.6", "kubelets' serving certificates are renewed", always("built in")},
		{
			"1.3.7", "the controllers listen at loopback",
			loopback("controllers.serving.listen", func(c *config.Configuration) string { return c.Controllers.Serving.Listen }),
		},
		{
			"1.4.2", "the scheduler listens at loopback",
			loopback("scheduler.serving.listen", func(c *config.Configuration) string { return c.Scheduler.Serving.Listen }),
		},
		{"2.1", "etcd serves by TLS, its clients and peers show certificates, of an authority of its own (to 2.7)", func(_ context.Context, s *subject) verdict {
			if len(s.config.Store.Endpoints) == 0 {
				return met("built in: etcd is in the process, no client but light servers (if there are) reaches it from outside, and those and members of other servers show certificates of an authority of their own")
			}
			return manual("look at its own flags", "etcd is a cluster of its own")
		}},
		{"3.1.1", "people use no client certificates (and 3.1.2, 3.1.3)", func(_ context.Context, s *subject) verdict {
			if s.config.APIServer.AuthenticationConfigFile == "" {
				return manual("OpenID Connect by apiserver.authenticationConfigFile", "there is no identity provider")
			}
			return met("apiserver.authenticationConfigFile")
		}},
		{"3.2.1", "there is an audit policy (and 3.2.2)", func(ctx context.Context, s *subject) verdict {
			if v := audited(ctx, s); v.state != meets {
				return v
			}
			if f := s.config.APIServer.AuditPolicyFile; f != "" {
				return manual("it should cover Secrets, ConfigMaps and TokenReviews as Metadata, and exec, portforward and proxy", "%s", f)
			}
			return met("built in: the metadata of every request but reads of health")
		}},
	}
}

func loopback(path string, of func(*config.Configuration) string) func(context.Context, *subject) verdict {
	return func(_ context.Context, s *subject) verdict {
		listen := of(s.config)
		host, _, err := net.SplitHostPort(listen)
		if addr, parsed := netip.ParseAddr(host); err == nil && (parsed != nil || !addr.IsLoopback()) && host != "localhost" {
			return lacking(path+`: ""`, "%s", listen)
		}
		return met("%s", listen)
	}
}
