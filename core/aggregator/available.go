// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// recheck is how often other servers are asked whether they are still there.
	recheck = 30 * time.Second
	// patience with one answer.
	patience = 5 * time.Second
	// probes go out at once, and one good answer is enough: several endpoints
	// may stand behind the Service.
	probes = 5
)

// check brings the Available condition of an APIService up to date.
func (a *Aggregator) check(ctx context.Context, name string) error {
	o, ok, err := a.apiServices.GetIndexer().GetByKey(name)
	if err != nil || !ok {
		return err
	}
	has := o.(*apiregistrationv1.APIService)
	condition, failed := helper.NewLocalAvailableAPIServiceCondition(), error(nil)
	if has.Spec.Service != nil {
		condition, failed = a.available(ctx, has)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.metrics.observe(name, condition)
	changed := has.DeepCopy()
	helper.SetAPIServiceCondition(changed, condition)
	if !equality.Semantic.DeepEqual(has.Status, changed.Status) {
		if _, err := a.client.UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("write the status of APIService %s: %w", name, err)
		}
	}
	if failed != nil {
		return controllers.ErrNotYet // asked again with a growing delay, at the latest after recheck
	}
	return nil
}

func condition(status apiregistrationv1.ConditionStatus, reason, format string, args ...any) apiregistrationv1.APIServiceCondition {
	return apiregistrationv1.APIServiceCondition{
		Type: apiregistrationv1.Available, Status: status, LastTransitionTime: metav1.Now(), Reason: reason,
		Message: fmt.Sprintf(format, args...),
	}
}

// available looks whether the server behind an APIService can be reached. The
// error is for what nobody announces when it ends.
func (a *Aggregator) available(ctx context.Context, s *apiregistrationv1.APIService) (apiregistrationv1.APIServiceCondition, error) {
	const no, unknown = apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown
	ref := s.Spec.Service
	service, err := a.services.Services(ref.Namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) {
		return condition(no, "ServiceNotFound", "service/%s in %q is not present", ref.Name, ref.Namespace), nil
	}
	if err != nil {
		return condition(unknown, "ServiceAccessError", "service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err), err
	}
	if hasEndpoints(service) {
		portName, found := "", false
		for _, p := range service.Spec.Ports {
			if p.Port == portOf(ref) {
				portName, found = p.Name, true
			}
		}
		if !found {
			return condition(no, "ServicePortError", "service/%s in %q is not listening on port %d", ref.Name, ref.Namespace, portOf(ref)), nil
		}
		endpoints, err := a.slices.GetEndpointSlices(ref.Namespace, ref.Name)
		if err != nil {
			return condition(unknown, "EndpointsAccessError", "service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err), err
		}
		if len(endpoints) == 0 {
			return condition(no, "EndpointsNotFound", "cannot find endpointslices for service/%s in %q", ref.Name, ref.Namespace), nil
		}
		if !slices.ContainsFunc(endpoints, func(e *discoveryv1.EndpointSlice) bool { return readyAt(e, portName) }) {
			return condition(no, "MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", ref.Name,
				ref.Namespace, portName), nil
		}
	}
	if err := a.answers(ctx, s); err != nil {
		return condition(no, "FailedDiscoveryCheck", "%s", err), err
	}
	return condition(apiregistrationv1.ConditionTrue, "Passed", "all checks passed"), nil
}

func readyAt(s *discoveryv1.EndpointSlice, portName string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }) &&
		slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Port != nil && (p.Name == nil && portName == "" || p.Name != nil && *p.Name == portName)
		})
}

// answers asks a server for what every server of the API has to serve.
func (a *Aggregator) answers(ctx context.Context, s *apiregistrationv1.APIService) error {
	r, ok := a.Remote(groupVersion(s))
	if !ok || !r.reaches(s) {
		return errors.New("the APIService has just changed")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	results := make(chan error, probes)
	var asking run.Tasks // ends with ctx, at the latest
	for range probes {
		asking.Go("aggregator: probe", func() { results <- a.probe(ctx, r) })
	}
	var err error
	for range probes {
		if err = <-results; err == nil {
			return nil // cancel ends the others; the channel has room for what they say
		}
	}
	r.transport.CloseIdleConnections()
	return err
}

func (a *Aggregator) probe(ctx context.Context, r *Remote) error {
	resp, err := a.ask(ctx, r, r.root(), nil)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("bad status from %s: %d", resp.Request.URL, resp.StatusCode)
	}
	return nil
}

// ask sends a GET of our own, as a member of system:masters: what it is for,
// discovery, must not depend on the roles in the cluster.
func (a *Aggregator) ask(ctx context.Context, r *Remote, path string, header http.Header) (*http.Response, error) {
	location, err := a.resolve(r)
	if err != nil {
		return nil, err
	}
	location.Path = path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	transport.SetAuthProxyHeaders(req, "system:kube-aggregator", "", []string{"system:masters"}, nil)
	client := &http.Client{
		Transport:     r.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("failing or missing response from %s: %w", location, err)
	}
	return resp, nil
}
