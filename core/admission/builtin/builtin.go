// SPDX-License-Identifier: Apache-2.0

// Package builtin holds the built-in admission plugins: those that upstream
// switches on by default, NodeRestriction, and, for who asks for them, those that
// are off by default. Each behaves and words its
// refusals as its upstream namesake does; Default lists them in upstream's order.
//
// Plugins read through shared informers. Where an informer has not seen an
// object yet, and a refusal would be wrong, they ask the server itself; where
// the informer has not been filled at all, they wait for it, for 10 s at most.
// They judge the versioned object and change copies of it only.
package builtin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/addresses"
	"github.com/wasmplane/wasmplane/core/admission/builtin/limitranger"
	"github.com/wasmplane/wasmplane/core/admission/builtin/noderestriction"
	"github.com/wasmplane/wasmplane/core/admission/builtin/podaccount"
	"github.com/wasmplane/wasmplane/core/admission/eventrate"
	"github.com/wasmplane/wasmplane/core/admission/imagereview"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
	"github.com/wasmplane/wasmplane/core/admission/podsize"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/dial"
)

// Deps are what the plugins read.
type Deps struct {
	// Client asks the server what informers have not seen yet.
	Client kubernetes.Interface
	// Informers are shared with the rest of the server; the caller starts them,
	// after Default has registered what it needs.
	Informers informers.SharedInformerFactory
	// Authorizer is asked who may approve, sign and own.
	Authorizer authz.Authorizer
	// Mapper finds the resources of owners' kinds; needed only by
	// OwnerReferencesPermissionEnforcement.
	Mapper meta.RESTMapper
	// Warm bounds how long a request waits for an informer that was just started; default 10 s.
	Warm time.Duration
	// Off switches plugins off by name, On adds those that are off by default.
	Off, On []string
	// Others are names that On and Off may have besides: of plugins that stand
	// elsewhere in the chain.
	Others []string
	// Settings of the plugins that have any; nil: the defaults.
	Settings *pluginconfig.Settings
	Dial     *dial.Policy // where ImagePolicyWebhook's service may be; nil: as operators say
}

// Default is the list, in the order in which they are asked.
func Default(d Deps) ([]admission.Plugin, error) {
	if d.Client == nil || d.Informers == nil || d.Authorizer == nil {
		return nil, errors.New("built-in admission plugins: Client, Informers and Authorizer are all needed")
	}
	if d.Mapper == nil && slices.Contains(d.On, ownerReferencesName) {
		return nil, fmt.Errorf("built-in admission plugins: %s needs a Mapper", ownerReferencesName)
	}
	if d.Warm <= 0 {
		d.Warm = 10 * time.Second
	}
	if d.Settings == nil {
		d.Settings = &pluginconfig.Settings{}
	}
	security, err := newPodSecurity(d)
	if err != nil {
		return nil, err
	}
	images, events, err := configured(d)
	if err != nil {
		return nil, err
	}
	all := []admission.Plugin{
		autoProvision{newNamespaces(d)}, // off by default
		newNamespaceLifecycle(d),
		namespaceExists{newNamespaces(d)}, // off by default
		antiAffinity{},                    // off by default
		podsize.Plugin{},
		limitranger.New(d.Client, d.Informers, d.Warm),
		podaccount.New(d.Client, d.Informers, d.Warm),
		noderestriction.New(d.Client, d.Informers, d.Authorizer),
		taintNodesByCondition{},
		alwaysPullImages{}, // off by default
		images,             // off by default
		security,
		podNodeSelector{newNamespaces(d), d.Settings.NodeSelectors}, // off by default
		newPriority(d),
		defaultTolerationSeconds{},
		podTolerations{newNamespaces(d), d.Settings.Tolerations}, // off by default
		events,               // off by default
		extendedToleration{}, // off by default
		newDefaultStorageClass(d),
		storageObjectInUseProtection{},
		podGroupProtection{},
		newOwnerReferences(d), // off by default
		newPersistentVolumeClaimResize(d),
		newRuntimeClass(d),
		certificateApproval{d.Authorizer},
		certificateSigning{d.Authorizer},
		trustBundleAttest{d.Authorizer},
		certificateSubjectRestriction{},
		newDefaultIngressClass(d),
		denyServiceExternals{},                           // off by default
		addresses.New(d.Authorizer, d.Informers, d.Warm), // off by default
		newPodTopologyLabels(d),
		newDeclaredFeatures(d),
		newPodResize(d),
	}
	return choose(all, d)
}

// configured are the plugins that cannot do without settings; where they are off
// they need none.
func configured(d Deps) (images *imagereview.Plugin, events *eventrate.Plugin, err error) {
	images, events = &imagereview.Plugin{}, &eventrate.Plugin{}
	if slices.Contains(d.On, imagereview.Name) {
		images, err = imagereview.New(d.Settings.ImagePolicy, d.Dial.Or())
	}
	if err == nil && slices.Contains(d.On, eventrate.Name) {
		events, err = eventrate.New(d.Settings.EventLimits, clock.RealClock{})
	}
	return images, events, err
}

// choose applies On and Off; a name that no plugin has is a mistake to tell about.
func choose(all []admission.Plugin, d Deps) ([]admission.Plugin, error) {
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name()
	}
	names = append(names, d.Others...)
	for _, n := range slices.Concat(d.On, d.Off) {
		if !slices.Contains(names, n) {
			return nil, fmt.Errorf("admission plugin %q does not exist; there are %s", n, strings.Join(names, ", "))
		}
	}
	for _, n := range d.Off {
		if why, must := needed()[n]; must {
			return nil, fmt.Errorf("admission plugin %s cannot be disabled: %s", n, why)
		}
		if slices.Contains(d.On, n) {
			return nil, fmt.Errorf("admission plugin %s is both enabled and disabled; take it out of one list", n)
		}
	}
	optional := offByDefault()
	return slices.DeleteFunc(all, func(p admission.Plugin) bool {
		return slices.Contains(d.Off, p.Name()) || slices.Contains(optional, p.Name()) && !slices.Contains(d.On, p.Name())
	}), nil
}
